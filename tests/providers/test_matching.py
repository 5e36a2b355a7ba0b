"""Which refund of a payment is ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.outcomes import Evidence, Listing, ProviderEffect
from providers.matching import Absent, FailedOnly, Found, Judgement, Mismatch, Several, judge
from tests.providers.requests_made import ACTION

OURS = {"action_id": ACTION, "instance": "shop-1"}


def an_effect(ref: str = "re_1", **changes: Any) -> ProviderEffect:
    values: dict[str, Any] = {
        "ref": ref,
        "amount_minor": 7900,
        "currency": "USD",
        "payment_ref": "pi_1",
        "status": "succeeded",
        "settlement": "succeeded",
        "metadata": OURS,
    }
    return ProviderEffect(**(values | changes))


def judged(
    *effects: ProviderEffect, known_refs: frozenset[str] = frozenset(), shared: bool = False
) -> Judgement:
    return judge(
        listing=Listing(effects=effects, evidence=Evidence()),
        action_id=ACTION,
        instance="shop-1",
        amount_minor=7900,
        currency="USD",
        payment_ref="pi_1",
        known_refs=known_refs,
        shared=shared,
    )


def test_an_empty_list_is_absent() -> None:
    assert judged() == Absent()


@pytest.mark.parametrize("settlement", ["succeeded", "pending", "requires_action"])
def test_one_live_match_is_found(settlement: str) -> None:
    effect = an_effect(settlement=settlement)
    assert judged(effect) == Found(effect=effect)


def test_the_case_of_a_currency_does_not_matter() -> None:
    assert isinstance(judged(an_effect(currency="usd")), Found)


def test_a_failed_older_generation_is_history() -> None:
    new, old = an_effect("re_2"), an_effect("re_1", settlement="failed")
    assert judged(new, old) == Found(effect=new)
    assert judged(old, new) == Found(effect=new)


def test_a_failed_older_generation_with_another_amount_is_history_too() -> None:
    new, old = an_effect("re_2"), an_effect("re_1", settlement="failed", amount_minor=1)
    assert judged(new, old) == Found(effect=new)


def test_failed_matches_alone_are_told_apart_from_absence() -> None:
    effects = (an_effect("re_2", settlement="failed"), an_effect("re_1", settlement="failed"))
    assert judged(*effects) == FailedOnly(effects=effects)


@pytest.mark.parametrize("settlement", ["succeeded", "pending", "failed"])
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"amount_minor": 790}, "amount"),
        ({"currency": "EUR"}, "currency"),
        ({"payment_ref": "pi_2"}, "payment"),
    ],
)
def test_a_match_that_is_not_what_was_asked_for_is_a_mismatch(
    settlement: str, changes: dict[str, Any], what: str
) -> None:
    effect = an_effect(settlement=settlement, **changes)
    assert judged(effect) == Mismatch(effect=effect, what=what)


def test_two_live_matches_are_several_even_when_one_differs() -> None:
    effects = (an_effect("re_2", amount_minor=1), an_effect("re_1", settlement="pending"))
    assert judged(*effects) == Several(effects=effects)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"action_id": ACTION},
        {"instance": "shop-1"},
        OURS | {"instance": "shop-2"},
        OURS | {"action_id": ACTION + "0"},
        OURS | {"action_id": ACTION.upper()},
    ],
)
def test_a_refund_that_is_not_ours_is_a_stranger_unless_known(metadata: dict[str, str]) -> None:
    effect = an_effect(metadata=metadata)
    assert judged(effect) == Absent(strangers=(effect,))
    assert judged(effect, known_refs=frozenset({"re_1"})) == Absent()
    assert judged(replace(effect, settlement="failed")) == Absent()


@pytest.mark.parametrize("metadata", [{}, {"action_id": ACTION}, OURS | {"instance": "shop-2"}])
def test_in_a_shared_listing_other_people_are_no_strangers(metadata: dict[str, str]) -> None:
    assert judged(an_effect(metadata=metadata), shared=True) == Absent()


def test_in_a_shared_listing_what_our_records_forgot_is_a_stranger() -> None:
    forgotten = an_effect("re_2", metadata=OURS | {"action_id": "refund:order-1:request-1"})
    assert judged(forgotten, shared=True) == Absent(strangers=(forgotten,))
    assert judged(forgotten, known_refs=frozenset({"re_2"}), shared=True) == Absent()
    ours = an_effect("re_1")
    assert judged(forgotten, ours, shared=True) == Found(effect=ours, strangers=(forgotten,))


def test_strangers_are_told_beside_what_was_found() -> None:
    ours, other = an_effect("re_1"), an_effect("re_2", metadata={})
    assert judged(ours, other) == Found(effect=ours, strangers=(other,))


EFFECTS = st.lists(
    st.builds(
        ProviderEffect,
        ref=st.integers(0, 10**6).map("re_{}".format),
        amount_minor=st.sampled_from([7900, 1]),
        currency=st.sampled_from(["USD", "usd", "EUR"]),
        payment_ref=st.sampled_from(["pi_1", "pi_2"]),
        status=st.just("x"),
        settlement=st.sampled_from(["succeeded", "pending", "requires_action", "failed"]),
        metadata=st.sampled_from(
            [OURS, OURS | {"instance": "shop-2"}, OURS | {"action_id": "other"}, {}]
        ),
    ),
    max_size=6,
    unique_by=lambda effect: effect.ref,
)


def live_matches(effects: list[ProviderEffect]) -> list[ProviderEffect]:
    return [e for e in effects if e.metadata == OURS and e.settlement != "failed"]


@given(EFFECTS)
def test_nothing_is_adopted_unless_it_is_the_only_live_match_and_right(
    effects: list[ProviderEffect],
) -> None:
    judgement = judged(*effects)
    live = live_matches(effects)
    right = [
        e
        for e in live
        if (e.amount_minor, e.currency.upper(), e.payment_ref) == (7900, "USD", "pi_1")
    ]
    assert isinstance(judgement, Found) == (len(live) == 1 and right == live)
    assert isinstance(judgement, Several) == (len(live) > 1)
    assert isinstance(judgement, Absent) == (not any(e.metadata == OURS for e in effects))


@given(EFFECTS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_change_the_judgement(
    effects: list[ProviderEffect], random: Any
) -> None:
    shuffled = list(effects)
    random.shuffle(shuffled)
    first, second = judged(*effects), judged(*shuffled)
    assert type(first) is type(second)
    assert {e.ref for e in first.strangers} == {e.ref for e in second.strangers}


@given(EFFECTS, st.sets(st.integers(0, 10**6).map("re_{}".format)))
def test_every_live_refund_is_ours_known_or_a_stranger(
    effects: list[ProviderEffect], known: set[str]
) -> None:
    known |= {effect.ref for effect in effects[::2]}
    strangers = judged(*effects, known_refs=frozenset(known)).strangers
    for effect in effects:
        accounted = effect.metadata == OURS or effect.ref in known or effect.settlement == "failed"
        assert accounted != (effect in strangers)
