"""One table of moves, and everything that is made from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django_fsm import TransitionNotAllowed

from effects import crashpoints
from effects.crashpoints import CRASH_POINTS
from effects.states import (
    FINAL_STATES,
    IN_FLIGHT_STATES,
    LEGAL,
    MOVES,
    START_STATES,
    STATES,
    STATES_WITHOUT_OPEN_QUESTIONS,
    State,
    sources_of,
)
from refunds.models import RefundAction
from tests import builders

# The moves as the design lists them, written down a second time by hand.
DESIGN: dict[str, str] = {
    "HELD": "AUTHORIZED AWAITING_APPROVAL REJECTED CANCELLED",
    "AWAITING_APPROVAL": "AUTHORIZED REJECTED EXPIRED CANCELLED",
    "AUTHORIZED": "SUBMITTING AWAITING_APPROVAL REJECTED CANCELLED UNKNOWN",
    "SUBMITTING": "SUCCEEDED PENDING UNKNOWN FAILED_FINAL AUTHORIZED",
    "UNKNOWN": "SUCCEEDED PENDING FAILED_FINAL AUTHORIZED AWAITING_APPROVAL",
    "PENDING": "SUCCEEDED FAILED_FINAL",
    "SUCCEEDED": "FAILED_FINAL",
    "FAILED_FINAL": "SUCCEEDED",
    "REJECTED": "",
    "EXPIRED": "",
    "CANCELLED": "",
}


def test_the_table_is_the_design_s() -> None:
    moves = {(source, target) for source, targets in DESIGN.items() for target in targets.split()}
    on_evidence = {(source, target) for source in DESIGN for target in ("SUCCEEDED", "PENDING")} - {
        ("SUCCEEDED", "SUCCEEDED"),
        ("PENDING", "PENDING"),
    }
    assert {(source.value, target.value) for source, target in LEGAL} == moves | on_evidence


def test_no_move_stands_in_the_table_twice_and_each_says_when() -> None:
    assert len(MOVES) == len(LEGAL)
    assert all(move.when for move in MOVES)
    assert all(move.source is not move.target for move in MOVES)


def test_the_fsm_declares_exactly_the_table() -> None:
    declared = set()
    for target in State:
        method = getattr(RefundAction, f"to_{target.value.lower()}")
        for source, made in method._django_fsm.transitions.items():
            assert made.target == target.value
            declared.add((State(source), target))
    assert declared == LEGAL


@pytest.mark.parametrize("target", State)
def test_the_fsm_refuses_every_other_move(target: State) -> None:
    for source in State:
        row = RefundAction(state=source.value)
        go = getattr(row, f"to_{target.value.lower()}")
        if (source, target) in LEGAL:
            go()
            assert row.state == target
        else:
            with pytest.raises(TransitionNotAllowed):
                go()


def test_a_state_is_never_assigned() -> None:
    row = RefundAction(state=State.HELD.value)
    with pytest.raises(AttributeError):
        row.state = State.SUCCEEDED.value


def test_every_state_has_its_paragraph() -> None:
    assert set(STATES) == set(State)
    for about in STATES.values():
        assert len(about.means) > 20
        assert len(about.mover) > 20
        assert about.means.endswith(".")
        assert about.mover.endswith(".")


def test_every_state_can_be_left_or_is_over_and_every_state_can_be_reached() -> None:
    for state in State:
        leaves = {move.target for move in MOVES if move.source is state}
        assert leaves or state in FINAL_STATES
        assert sources_of(state) or state in START_STATES
    assert set(START_STATES) == {
        State.HELD,
        State.AWAITING_APPROVAL,
        State.AUTHORIZED,
        State.REJECTED,
    }


def test_a_state_that_may_have_an_open_question_is_not_one_without() -> None:
    assert not set(IN_FLIGHT_STATES) & set(STATES_WITHOUT_OPEN_QUESTIONS)
    # HELD cannot be entered; SUCCEEDED may be, by proof about another attempt than the open one.
    assert set(State) - set(IN_FLIGHT_STATES) - set(STATES_WITHOUT_OPEN_QUESTIONS) == {
        State.HELD,
        State.SUCCEEDED,
    }


def _columns_for(state: State, *, amount_minor: int = 7_900) -> dict[str, Any]:
    """What the CHECKs ask of a row in this state."""
    return {
        "reserved_minor": amount_minor if state in IN_FLIGHT_STATES else 0,
        "provider_ref": "re_1" if state in (State.SUCCEEDED, State.PENDING) else "",
    }


def _put(action: RefundAction, state: State) -> None:
    columns = _columns_for(state)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE refunds_refundaction SET state = %s, reserved_minor = %s, provider_ref = %s,"
            " attempt_count = 1, due_at = now(), unknown_since = now() WHERE id = %s",
            [state.value, columns["reserved_minor"], columns["provider_ref"], action.pk],
        )


@pytest.mark.django_db
@pytest.mark.parametrize("source", State)
def test_the_database_lets_through_exactly_the_table(source: State) -> None:
    action = builders.action(builders.order())
    with builders.past_the_triggers():
        _put(action, source)

    passed, refused_by = set(), {}
    for target in State:
        try:
            with transaction.atomic():
                _put(action, target)
                passed.add(target)
                transaction.set_rollback(True)
        except DatabaseError as error:
            refused_by[target] = str(error)
    allowed = {target for known, target in LEGAL if known is source} | {source}
    if source is State.AWAITING_APPROVAL:
        # Legal, and more is asked for: the rows of the people who approved it.
        assert "only they authorize it" in refused_by.pop(State.AUTHORIZED)
        allowed.remove(State.AUTHORIZED)
    assert passed == allowed
    for target, words in refused_by.items():
        assert f'Invalid transition of field "state" from "{source}" to "{target}"' in words


ROOMS = [
    "effects",
    "providers",
    "policies",
    "approvals",
    "refunds",
    "notifications",
    "reconciliation",
    "agents",
    "console",
    "shakedown",
    "config",
]


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_each_crash_point_stands_in_exactly_one_place(point: str) -> None:
    (name,) = (
        name for name, value in vars(crashpoints).items() if name.isupper() and value == point
    )
    used = [
        path
        for room in ROOMS
        for path in (Path(settings.BASE_DIR) / room).rglob("*.py")
        for _ in re.findall(rf"crash_point\(\s*(?:crashpoints\.)?{name}\s*\)", path.read_text())
    ]
    assert len(used) == 1, used


def test_crash_points_are_inert_without_a_folder(settings: Any) -> None:
    settings.CRASH_POINTS_DIR = ""
    crashpoints.crash_point(crashpoints.AFTER_CLAIM)


def test_an_armed_crash_point_fires_once_for_one_process(settings: Any, tmp_path: Path) -> None:
    settings.CRASH_POINTS_DIR = str(tmp_path)
    (tmp_path / crashpoints.AFTER_CLAIM).write_text("freeze 0")
    crashpoints.crash_point(crashpoints.AFTER_ANSWER)
    assert (tmp_path / crashpoints.AFTER_CLAIM).exists()
    crashpoints.crash_point(crashpoints.AFTER_CLAIM)
    crashpoints.crash_point(crashpoints.AFTER_CLAIM)
    (fired,) = tmp_path.iterdir()
    assert fired.name.startswith(f"{crashpoints.AFTER_CLAIM}.fired-")
