"""What a matrix calls wrong: money moved twice, a fault that never was, a control without teeth."""

from __future__ import annotations

from dataclasses import replace

from tests.frameworks.faulty_proxy import Cell, Spoil
from tests.frameworks.matrix import (
    DROP,
    FAULTS,
    FRAMEWORKS,
    OK,
    TWO_CALLS,
    Fault,
    Report,
    Run,
    Side,
)
from tests.frameworks.scripted_model import AMOUNT_MINOR


def run(fault: Fault, side: Side, *, moved: int, asked: int = 1) -> Run:
    """A run of one framework that ended well, its fault fired."""
    cell = Cell(token=f"{fault.name}-{side}", upstream="", spoil=fault.spoil, proposals=moved)
    cell.spoiled.set()
    made = Run(framework=FRAMEWORKS[0], fault=fault, side=side, payment="pi", cell=cell)
    made.answer, made.asked, made.moved = "Done", asked, moved
    made.amounts = [AMOUNT_MINOR] * moved
    return made


def good() -> list[Run]:
    """Once by Refund Once, twice by the control when an answer is dropped."""
    return [
        run(OK, Side.CONTRACT, moved=1),
        run(OK, Side.CONTROL, moved=1),
        run(DROP, Side.CONTRACT, moved=1),
        run(DROP, Side.CONTROL, moved=2),
    ]


def test_a_matrix_in_which_only_the_control_pays_twice_is_right() -> None:
    assert Report(runs=good(), kills_armed=5, kills_fired=4).problems() == []


def test_money_that_moved_twice_or_not_at_all_is_told() -> None:
    for moved in (0, 2):
        runs = [*good(), run(TWO_CALLS, Side.CONTRACT, moved=moved, asked=2)]
        (problem,) = Report(runs=runs).problems()
        assert f"money moved {moved} times" in problem


def test_another_amount_is_told() -> None:
    runs = good()
    runs[2].amounts = [AMOUNT_MINOR + 1]
    (problem,) = Report(runs=runs).problems()
    assert f"[{AMOUNT_MINOR + 1}] moved" in problem


def test_a_fault_that_never_happened_is_told() -> None:
    runs = good()
    runs[2].cell.spoiled.clear()
    asked_once = run(TWO_CALLS, Side.CONTRACT, moved=1)
    problems = Report(runs=[*runs, asked_once]).problems()
    assert problems == [
        f"{runs[2].id}: the fault never happened",
        f"{asked_once.id}: the fault never happened",
    ]


def test_a_control_that_never_pays_twice_has_no_teeth() -> None:
    runs = good()
    runs[3] = run(DROP, Side.CONTROL, moved=1)
    problems = Report(runs=runs).problems()
    assert "the control never paid twice under 'drop': it has no teeth" in problems


def test_workers_that_did_not_die_are_told() -> None:
    (problem,) = Report(runs=good(), kills_armed=5, kills_fired=2).problems()
    assert problem == "2 workers were killed of 5 to kill"


def test_what_the_world_found_wrong_is_told() -> None:
    assert Report(runs=good(), wrong=["an order"]).problems() == ["an order"]


def test_every_spoiled_answer_has_its_fault() -> None:
    assert {fault.spoil for fault in FAULTS} == set(Spoil)
    assert len({replace(fault, means="") for fault in FAULTS}) == len(FAULTS) == 11
