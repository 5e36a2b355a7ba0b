"""What differs from what a person approved, one fact at a time, on rows that are in memory only."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from approvals.standing import Yes
from kernel.canonical import canonical_json, sha256_hex
from policies.facts import Facts, OrderLine, OtherAction
from refunds.binding import binding, content_of, hash_of, what_changed, what_was_tampered_with
from refunds.facts import Beside
from refunds.models import Order, RefundAction
from tests.policies.examples import FACTS

NOW = datetime(2026, 3, 4, 14, 30, tzinfo=UTC)
APPROVED_AT = NOW - timedelta(hours=2)
PAYLOAD = '{"amount":7900}'


def order(**fields: Any) -> Order:
    """Order 4821 at version 18, as it was approved."""
    values: dict[str, Any] = {
        "order_id": "4821",
        "version": 18,
        "currency": "USD",
        "provider": "stripe",
        "account": "",
        "payment_ref": "pi_1",
    }
    return Order(**(values | fields))


def action(**fields: Any) -> RefundAction:
    """Request 3 of it: 79.00."""
    values: dict[str, Any] = {
        "action_id": "refund:order-4821:request-3",
        "request_id": "3",
        "amount_minor": 7_900,
        "currency": "USD",
        "reason": "late",
        "provider": "stripe",
        "account": "",
        "payload": PAYLOAD,
        "payload_hash": sha256_hex(PAYLOAD),
    }
    return RefundAction(**(values | fields))


def facts(**fields: Any) -> Facts:
    values: dict[str, Any] = {
        "order_version": 18,
        "captured_minor": 50_000,
        "refunded_minor": 1_000,
        "reserved_minor": 2_000,
        "disputed_minor": 3_000,
        "settled_otherwise_minor": 4_000,
    }
    return replace(FACTS, **(values | fields))


def beside(**fields: Any) -> Beside:
    values: dict[str, Any] = {
        "now": NOW,
        "policy_number": 7,
        "policy_hash": "",
        "switches": (),
        "order_cases": 0,
        "incidents": 0,
        "found_elsewhere": 0,
        "taken_for_undone": False,
        "breaker_open": False,
        "lines_refunded": (),
        "others": (),
        "attempts": (),
        "action_cases": 0,
        "action_exists": True,
    }
    return Beside(**(values | fields))


def other(state: str, *, number: str = "2", minutes_ago: float = 25, **fields: Any) -> OtherAction:
    """Another refund of the order: 30.00 that became so after the approval, unless said."""
    values: dict[str, Any] = {
        "action_id": f"refund:order-4821:request-{number}",
        "state": state,
        "amount_minor": 3_000,
        "age_seconds": minutes_ago * 60,
    }
    return OtherAction(**(values | fields))


BOUND = binding(action=action(), order=order(), facts=facts(), beside=beside())


def yes(**fields: Any) -> Yes:
    values: dict[str, Any] = {
        "number": 1,
        "user_id": 1,
        "username": "alice",
        "decided_at": APPROVED_AT,
        "expires_at": NOW + timedelta(seconds=1),
        "payload_hash": sha256_hex(PAYLOAD),
        "resource_version": 18,
        "facts": BOUND,
        "tier_now": 2,
    }
    return Yes(**(values | fields))


def changed(
    *,
    approval: Yes | None = None,
    of_action: RefundAction | None = None,
    of_order: Order | None = None,
    now: Facts | None = None,
    read: Beside | None = None,
    tier: int = 2,
) -> tuple[str, ...]:
    return what_changed(
        yes=approval or yes(),
        action=of_action or action(),
        order=of_order or order(),
        facts=now or facts(),
        beside=read or beside(),
        tier=tier,
    )


# -- what is bound --------------------------------------------------------------------------------


def test_a_decision_is_bound_to_exactly_what_is_refunded_and_to_the_order_as_it_stands() -> None:
    content = {
        "order_id": "4821",
        "request_id": "3",
        "amount_minor": 7_900,
        "currency": "USD",
        "reason": "late",
        "provider": "stripe",
        "account": "acct_1",
        "payment_ref": "pi_1",
        "payload_hash": sha256_hex(PAYLOAD),
    }
    mine = action(account="acct_1")
    assert content_of(action=mine, order=order()) == content
    assert hash_of(content) == sha256_hex(canonical_json(content))
    others = (
        other("SUCCEEDED", action_id="re_1"),
        other("SUCCEEDED"),
        other("SUCCEEDED", action_id="re_2"),
    )
    bound = binding(
        action=mine,
        order=order(),
        facts=facts(reserved_minor=9_900, own_reservation_minor=7_900, dispute_state="won"),
        beside=beside(others=others),
    )
    assert bound == {
        "content": content,
        "content_hash": hash_of(content),
        "refundable_minor": 40_000,
        "refunded_minor": 1_000,
        "in_flight_minor": 2_000,
        "own_reservation_minor": 7_900,
        "settled_otherwise_minor": 4_000,
        "disputed_minor": 3_000,
        "dispute_state": "won",
        "captured_minor": 50_000,
        "policy_version": 7,
        "stated": {
            "customer": sha256_hex(canonical_json(order().customer_ref)),
            "risk": sha256_hex('"low"'),
            "lines": sha256_hex(canonical_json([asdict(line) for line in FACTS.order_lines or ()])),
            "shipping": sha256_hex("500"),
            "placed": sha256_hex('"2026-03-01T12:00:00+00:00"'),
            "delivered": sha256_hex('"2026-03-02T12:00:00+00:00"'),
            "method": sha256_hex('"card"'),
        },
        "elsewhere": ["re_1", "re_2"],
    }


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"customer_risk": "blocked"}, "the customer's risk changed"),
        ({"shipping_minor": 0}, "the shipping changed"),
        ({"placed_at": "2026-01-01"}, "the date of the order changed"),
        ({"delivered_at": "2026-01-02"}, "the date of the delivery changed"),
        ({"payment_method": "ideal"}, "the payment method changed"),
        (
            {"order_lines": (OrderLine(line_id="l1", amount_minor=1),)},
            "the order's lines changed",
        ),
        ({"order_lines": None}, "the order's lines changed"),
    ],
)
def test_what_the_merchant_states_otherwise_is_said(fact: dict[str, Any], words: str) -> None:
    assert changed(now=facts(**fact)) == (f"order 4821 has another balance: {words}",)


def test_a_yes_that_names_nothing_of_what_is_stated_was_given_on_something_else() -> None:
    unnamed = {name: value for name, value in BOUND.items() if name != "stated"}
    assert changed(approval=yes(facts=unnamed)) == (
        "order 4821 has another balance: the order's customer changed; the customer's risk changed;"
        " the order's lines changed; the shipping changed; the date of the order changed;"
        " the date of the delivery changed; the payment method changed",
    )


def test_another_customer_is_said() -> None:
    assert changed(of_order=order(customer_ref="cus_2")) == (
        "order 4821 has another balance: the order's customer changed",
    )


def test_nothing_differs_while_nothing_changed() -> None:
    assert changed() == ()
    assert what_was_tampered_with(action=action(), order=order(), bound=(BOUND, BOUND)) == ""


# -- the approval itself --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"payload_hash": "another"}, "the approval of alice was given for another request"),
        (
            {"facts": {name: value for name, value in BOUND.items() if name != "content_hash"}},
            "the approval of alice was given for another request",
        ),
        ({"tier_now": 1}, "approver alice may no longer approve"),
        ({"tier_now": 0}, "approver alice may no longer approve"),
        ({"expires_at": NOW}, "the approval of alice has expired"),
        ({"expires_at": NOW - timedelta(days=1)}, "the approval of alice has expired"),
        ({"facts": BOUND | {"policy_version": 6}}, "policy 7 is in force, not 6"),
        ({"facts": BOUND | {"policy_version": 8}}, "policy 7 is in force, not 8"),
        (
            {"facts": {name: value for name, value in BOUND.items() if name != "policy_version"}},
            "policy 7 is in force, not 0",
        ),
    ],
)
def test_a_yes_that_no_longer_holds_says_why(fields: dict[str, Any], told: str) -> None:
    assert changed(approval=yes(**fields)) == (told,)


def test_a_yes_of_a_higher_tier_serves_a_lower_one() -> None:
    assert changed(approval=yes(tier_now=3)) == ()
    assert changed(tier=3) == ("approver alice may no longer approve",)


def test_everything_that_differs_is_said_at_once() -> None:
    told = changed(
        approval=yes(payload_hash="another", tier_now=0, expires_at=NOW),
        of_order=order(version=19),
        now=facts(captured_minor=10_001),
        read=beside(policy_number=8),
    )
    assert told == (
        "the approval of alice was given for another request",
        "approver alice may no longer approve",
        "the approval of alice has expired",
        "policy 8 is in force, not 7",
        "order 4821 is at version 19, not 18: no longer captured: 399.99 USD",
        "only 0.01 USD is left of order 4821",
    )


# -- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"refunded_minor": 1_001}, "refunded since: 0.01 USD"),
        ({"refunded_minor": 999}, "no longer refunded: 0.01 USD"),
        ({"reserved_minor": 2_001}, "in flight since: 0.01 USD"),
        ({"reserved_minor": 1_999}, "no longer in flight: 0.01 USD"),
        ({"settled_otherwise_minor": 4_001}, "settled otherwise since: 0.01 USD"),
        ({"settled_otherwise_minor": 3_999}, "no longer settled otherwise: 0.01 USD"),
        ({"disputed_minor": 3_001}, "disputed since: 0.01 USD"),
        ({"disputed_minor": 2_999}, "no longer disputed: 0.01 USD"),
        ({"captured_minor": 50_001}, "captured since: 0.01 USD"),
        ({"captured_minor": 49_999}, "no longer captured: 0.01 USD"),
        ({"dispute_state": "inquiry"}, "the dispute is now inquiry"),
        (
            {"refunded_minor": 1_100, "disputed_minor": 3_050, "dispute_state": "open"},
            "refunded since: 1.00 USD; disputed since: 0.50 USD; the dispute is now open",
        ),
    ],
)
def test_a_balance_that_is_another_one_is_said_with_and_without_a_version(
    fields: dict[str, Any], told: str
) -> None:
    assert changed(now=facts(**fields)) == (f"order 4821 has another balance: {told}",)
    assert changed(now=facts(**fields), of_order=order(version=19)) == (
        f"order 4821 is at version 19, not 18: {told}",
    )


def test_what_an_approval_does_not_name_was_nothing() -> None:
    amounts = ("refunded_minor", "in_flight_minor", "settled_otherwise_minor", "disputed_minor")
    bound = {name: value for name, value in BOUND.items() if name not in amounts}
    assert changed(approval=yes(facts=bound)) == (
        "order 4821 has another balance: refunded since: 10.00 USD; in flight since: 20.00 USD; "
        "settled otherwise since: 40.00 USD; disputed since: 30.00 USD",
    )
    del bound["captured_minor"], bound["dispute_state"]
    (told,) = changed(approval=yes(facts=bound))
    assert told.endswith("captured since: 500.00 USD; the dispute is now none")


@pytest.mark.parametrize("version", [17, 19])
def test_a_version_says_that_something_changed_even_where_no_balance_does(version: int) -> None:
    assert changed(of_order=order(version=version)) == (
        f"order 4821 is at version {version}, not 18: a fact of the order changed",
    )


def test_our_own_reservation_is_one_version_and_no_difference() -> None:
    reserved = facts(reserved_minor=9_900, own_reservation_minor=7_900)
    assert changed(now=reserved, of_order=order(version=19)) == ()
    assert changed(now=reserved, of_order=order(version=18)) == (
        "order 4821 is at version 18, not 19: a fact of the order changed",
    )
    # Where it was there when the approval was given it moved nothing since.
    kept = yes(facts=BOUND | {"own_reservation_minor": 7_900})
    assert changed(approval=kept, now=reserved, of_order=order(version=18)) == ()
    assert changed(approval=kept, now=reserved, of_order=order(version=19)) == (
        "order 4821 is at version 19, not 18: a fact of the order changed",
    )


def test_no_more_than_is_left_whatever_was_approved() -> None:
    tight = {"captured_minor": 17_900}
    bound = yes(facts=BOUND | {"captured_minor": 17_900})
    assert changed(approval=bound, now=facts(**tight)) == ()
    bound = yes(facts=BOUND | {"captured_minor": 17_899})
    assert changed(approval=bound, now=facts(captured_minor=17_899)) == (
        "only 78.99 USD is left of order 4821",
    )
    bound = yes(facts=BOUND | {"captured_minor": 9_000})
    assert changed(approval=bound, now=facts(captured_minor=9_000)) == (
        "only 0.00 USD is left of order 4821",
    )


# -- other refunds --------------------------------------------------------------------------------


def told_of(*others: OtherAction, known: tuple[str, ...] = (), **fields: Any) -> str:
    """What is said of these others beside an order at the next version."""
    (told,) = changed(
        approval=yes(facts=BOUND | {"elsewhere": list(known)}),
        of_order=order(version=19),
        now=facts(**fields),
        read=beside(others=others),
    )
    return told.removeprefix("order 4821 is at version 19, not 18: ")


@pytest.mark.parametrize(
    ("one", "fields", "told"),
    [
        (
            other("SUCCEEDED"),
            {"refunded_minor": 4_000},
            "30.00 USD refunded by request 2 at 14:05 UTC",
        ),
        (
            other("SUCCEEDED", minutes_ago=119.9),
            {"refunded_minor": 4_000},
            "30.00 USD refunded by request 2 at 12:30 UTC",
        ),
        # What it was before the approval, the approver saw.
        (
            other("SUCCEEDED", minutes_ago=120),
            {"refunded_minor": 4_000},
            "refunded since: 30.00 USD",
        ),
        *(
            (
                other(state),
                {"reserved_minor": 5_000},
                "30.00 USD in flight for request 2 since 14:05 UTC",
            )
            for state in ("SUBMITTING", "UNKNOWN", "PENDING")
        ),
        (other("FAILED_FINAL"), {}, "30.00 USD of request 2 failed at 14:05 UTC"),
        (other("AUTHORIZED"), {}, "a fact of the order changed"),
        (
            other("SUCCEEDED", action_id="re_9"),
            {"refunded_minor": 4_000},
            "30.00 USD refunded elsewhere (re_9) at 14:05 UTC",
        ),
        # One that was made elsewhere is news while the approver did not know it, however old.
        (
            other("SUCCEEDED", action_id="re_9", minutes_ago=24 * 60),
            {"refunded_minor": 4_000},
            "30.00 USD refunded elsewhere (re_9) at 14:30 UTC of 2026-03-03",
        ),
        # What others explain of a sum is not said again, and the rest is.
        (
            other("SUCCEEDED"),
            {"refunded_minor": 4_001},
            "30.00 USD refunded by request 2 at 14:05 UTC; refunded since: 0.01 USD",
        ),
        (
            other("SUCCEEDED"),
            {"refunded_minor": 3_999},
            "30.00 USD refunded by request 2 at 14:05 UTC; no longer refunded: 0.01 USD",
        ),
        (
            other("PENDING"),
            {"reserved_minor": 5_001},
            "30.00 USD in flight for request 2 since 14:05 UTC; in flight since: 0.01 USD",
        ),
        # It was in flight when it was approved, and it is plain where that went.
        (
            other("SUCCEEDED"),
            {"refunded_minor": 4_000, "reserved_minor": 0},
            "30.00 USD refunded by request 2 at 14:05 UTC",
        ),
    ],
)
def test_another_refund_is_named_with_its_amount_and_time(
    one: OtherAction, fields: dict[str, Any], told: str
) -> None:
    assert told_of(one, **fields) == told


def test_a_refund_made_elsewhere_that_was_known_is_no_news() -> None:
    known = other("SUCCEEDED", action_id="re_9")
    assert told_of(known, known=("re_9",)) == "a fact of the order changed"
    without = {name: value for name, value in BOUND.items() if name != "elsewhere"}
    told = changed(
        approval=yes(facts=without),
        now=facts(refunded_minor=4_000),
        read=beside(others=(known,)),
    )
    assert told == (
        "order 4821 has another balance: 30.00 USD refunded elsewhere (re_9) at 14:05 UTC",
    )


def test_what_was_refunded_comes_first_then_what_is_in_flight_then_what_failed() -> None:
    told = told_of(
        other("FAILED_FINAL", number="4"),
        other("PENDING", number="5"),
        other("SUCCEEDED", number="6"),
        refunded_minor=4_000,
        reserved_minor=5_000,
    )
    assert told == (
        "30.00 USD refunded by request 6 at 14:05 UTC; "
        "30.00 USD in flight for request 5 since 14:05 UTC; "
        "30.00 USD of request 4 failed at 14:05 UTC"
    )


def test_five_are_named_and_the_others_counted() -> None:
    def of(count: int) -> str:
        others = (other("SUCCEEDED", number=str(number)) for number in range(count))
        return told_of(*others, refunded_minor=1_000 + 3_000 * count)

    assert of(5).count("refunded by request") == 5
    assert "more" not in of(5)
    assert of(6).count("refunded by request") == 5
    assert of(6).endswith("; and 1 more")
    assert of(8).endswith("; and 3 more")


# -- what no code of ours changes -----------------------------------------------------------------


def tampered(*bound: dict[str, Any], order_: Order | None = None, **fields: Any) -> str:
    return what_was_tampered_with(
        action=action(**fields), order=order_ or order(), bound=bound or (BOUND,)
    )


def test_a_frozen_request_that_is_another_one_is_told_first() -> None:
    told = "the frozen request does not match its hash"
    assert tampered(payload='{"amount":7901}', currency="EUR") == told
    assert tampered(payload_hash="another") == told


@pytest.mark.parametrize(
    ("name", "value", "was"),
    [("currency", "EUR", "USD"), ("provider", "other", "stripe"), ("account", "acct_9", "")],
)
def test_an_order_of_another_payment_is_told(name: str, value: str, was: str) -> None:
    assert (
        tampered(order_=order(**{name: value})) == f"the order's {name} is {value!r}, not {was!r}"
    )


@pytest.mark.parametrize(
    ("name", "value", "was"),
    [("amount_minor", 7_901, 7_900), ("reason", "damaged", "late"), ("request_id", "4", "3")],
)
def test_an_action_that_is_not_the_one_that_was_decided_is_told(
    name: str, value: Any, was: Any
) -> None:
    assert tampered(**{name: value}) == f"{name} is {value!r}, not {was!r}"
    # Of two that say the same it is said once.
    assert tampered(BOUND, BOUND, **{name: value}) == f"{name} is {value!r}, not {was!r}"


def test_a_payment_that_is_another_one_is_told() -> None:
    assert tampered(order_=order(payment_ref="pi_2")) == "payment_ref is 'pi_2', not 'pi_1'"
    assert tampered(order_=order(order_id="4822")) == "order_id is '4822', not '4821'"


def test_a_binding_that_does_not_match_its_own_hash_is_told() -> None:
    assert tampered(BOUND | {"content_hash": "x"}) == "its content is not what the decision names"
    assert tampered({"content_hash": "x"}).startswith("order_id is '4821', not None; request_id is")


def test_a_binding_of_before_there_was_a_content_says_nothing() -> None:
    assert tampered({"payload_hash": "x"}) == ""
    old_first = tampered({"payload_hash": "x"}, BOUND, amount_minor=7_901)
    assert old_first == "amount_minor is 7901, not 7900"


def test_two_differences_are_both_told() -> None:
    told = tampered(order_=order(currency="EUR"), amount_minor=7_901)
    assert told == "the order's currency is 'EUR', not 'USD'; amount_minor is 7901, not 7900"
