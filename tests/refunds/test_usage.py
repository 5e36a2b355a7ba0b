"""What was used lately: which actions count, in which windows, for whom, and since when."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest
from django.db import transaction

from effects.clock import database_now
from effects.models import Switch
from effects.outcomes import Refused
from effects.states import State
from effects.switches import turn_off, turn_on
from policies.facts import SCOPES
from policies.models import ReferenceRate
from reconciliation.decisions import decide_held
from refunds import hint
from refunds.kind import REFUND
from refunds.models import Order, RefundAction
from refunds.usage import UsedLately, used_lately
from refunds.withdraw import withdraw_refund
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def _everything_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint, "publish", lambda action_id: None)
    builders.allow_all()


def used(
    order: Order, *, agent: str = "agent-1", action_id: str = "", **more: object
) -> UsedLately:
    return used_lately(
        order=order,
        action_id=action_id,
        proposer=agent,
        parameters=builders.ALLOW_ALL,
        now=database_now(),
        **more,  # type: ignore[arg-type]
    )


def of(found: UsedLately, scope: str, window: str) -> tuple[int, dict[str, int]]:
    (usage,) = (u for u in found.usage if (u.scope, u.window) == (scope, window))
    return usage.count, usage.sums_minor


def refund(
    order: Order, amount_minor: int, *, agent: str = "agent-1", **more: object
) -> RefundAction:
    return builders.action(order, amount_minor=amount_minor, proposer=agent, **more)


def test_every_window_of_every_scope_is_read_even_when_nothing_was_used() -> None:
    found = used(builders.order())
    assert [(u.scope, u.window, u.count, u.sums_minor) for u in found.usage] == [
        (scope, window, 0, {}) for scope, windows in SCOPES.items() for window in windows
    ]


def test_a_scope_counts_its_own() -> None:
    mine, hers = builders.order(customer_ref="cus_1"), builders.order(customer_ref="cus_1")
    other = builders.order(customer_ref="cus_2")
    refund(mine, 1_000)
    refund(hers, 200, agent="agent-2")
    refund(other, 30, reason="goodwill")

    found = used(mine)

    assert of(found, "agent", "hour") == (2, {"USD": 1_030})
    assert of(found, "customer", "30_days") == (2, {"USD": 1_200})
    assert of(found, "order", "ever") == (1, {"USD": 1_000})
    assert of(found, "total", "day") == (3, {"USD": 1_230})
    assert of(found, "goodwill_total", "30_days") == (1, {"USD": 30})
    assert of(found, "goodwill_agent", "30_days") == (1, {"USD": 30})
    assert of(used(other, agent="agent-2"), "goodwill_agent", "30_days") == (0, {})


def test_the_action_itself_is_left_out() -> None:
    order = builders.order()
    action = refund(order, 1_000)
    assert of(used(order, action_id=action.action_id), "order", "ever") == (0, {})


def test_a_customer_nobody_named_is_nobodys_customer() -> None:
    unnamed = builders.order(customer_ref="cus_1")
    Order.objects.filter(pk=unnamed.pk).update(customer_ref="")
    unnamed.refresh_from_db()
    refund(unnamed, 1_000)
    assert of(used(unnamed), "customer", "365_days") == (0, {})


def test_currencies_are_summed_apart() -> None:
    refund(builders.order(), 1_000)
    refund(builders.order(currency="JPY"), 500)
    assert of(used(builders.order()), "total", "day") == (2, {"JPY": 500, "USD": 1_000})


def test_windows_end() -> None:
    order = builders.order()
    refund(order, 1_000)
    builders.skew_clock(HOUR + 1)
    refund(order, 200)
    found = used(order)
    assert of(found, "agent", "hour") == (1, {"USD": 200})
    assert of(found, "agent", "day") == (2, {"USD": 1_200})
    builders.skew_clock(DAY + HOUR + 2)
    assert of(used(order), "agent", "day") == (0, {})
    assert of(used(order), "order", "ever") == (2, {"USD": 1_200})


def test_what_waits_for_a_person_is_counted_and_not_summed() -> None:
    order = builders.order()
    builders.policy(ceiling_minor={})
    waiting = refund(order, 1_000)
    assert waiting.state == State.AWAITING_APPROVAL
    assert of(used(order), "agent", "hour") == (1, {})


def test_what_was_withdrawn_was_never_used() -> None:
    order = builders.order()
    withdraw_refund(action_id=refund(order, 1_000).action_id, actor="agent")
    assert of(used(order), "agent", "hour") == (0, {})


def test_a_failed_refund_gives_its_money_back_to_the_budget() -> None:
    order = builders.order()
    action = refund(order, 1_000)
    claimed = builders.claimed(action)
    assert of(used(order), "agent", "hour") == (1, {"USD": 1_000})
    builders.answered(
        claimed.token,
        Refused(code="not_refundable", evidence=builders.NO_EVIDENCE),
    )
    assert builders.fresh(action).state == State.FAILED_FINAL
    assert of(used(order), "agent", "hour") == (1, {})


def test_what_was_held_for_a_day_counts_from_when_it_is_allowed() -> None:
    """Else a kill switch of a day would let everything it held through at once, uncounted."""

    order = builders.order()
    turn_on(scope="global", reason="drill", actor="test")
    held = refund(order, 1_000)
    assert held.state == State.HELD
    builders.skew_clock(25 * HOUR)
    turn_off(switch_id=Switch.objects.get().pk, actor="test")

    assert decide_held(kind=REFUND, now=database_now(), seen=[])
    assert builders.fresh(held).state == State.AUTHORIZED
    assert of(used(order), "agent", "hour") == (1, {"USD": 1_000})


def test_what_was_admitted_later_is_not_held_against_what_was_admitted_before() -> None:
    order = builders.order()
    first = refund(order, 1_000)
    refund(builders.order(), 200)
    found = used(order, action_id=first.action_id, before=first.authorized_at)
    assert of(found, "agent", "hour") == (0, {})


def rate(day: date, currency: str, value: str) -> None:
    ReferenceRate.objects.create(
        day=day, currency=currency, rate=Decimal(value), source="test", imported_at=database_now()
    )


def test_the_newest_days_rates_are_pinned_and_none_of_tomorrow() -> None:
    today = database_now().date()
    rate(today - timedelta(days=9), "USD", "9")
    for currency, value in (("EUR", "1"), ("USD", "1.0850"), ("JPY", "163.2")):
        rate(today - timedelta(days=3), currency, value)
    rate(today + timedelta(days=1), "USD", "7")

    found = used(builders.order())

    assert found.rates == (("EUR", "1"), ("JPY", "163.2"), ("USD", "1.085"))
    assert found.rates_day == (today - timedelta(days=3)).isoformat()
    assert found.rates_age_days == 3


def test_without_any_rate_there_is_none() -> None:
    found = used(builders.order())
    assert (found.rates, found.rates_day, found.rates_age_days) == ((), "", None)


def test_a_days_rate_is_written_once() -> None:
    today = database_now().date()
    rate(today, "USD", "1.1")
    with pytest.raises(Exception, match="one_rate_a_day"), transaction.atomic():
        rate(today, "USD", "1.2")
    with pytest.raises(Exception, match="no_update"), transaction.atomic():
        ReferenceRate.objects.update(rate=Decimal("1.2"))
