"""Each rule by a table: at a boundary, one below it, one above it, and without its fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernel.money import AMOUNT_MINOR_MAX
from policies.decision import Verdict
from policies.facts import OrderLine
from policies.parameters import Parameters, Tier
from policies.rules import RULES, Said, evaluate, tier_for
from policies.versions import DEFAULT_PARAMETERS
from tests.policies.examples import FACTS, HOUR, limit, lines, other, unused, used, with_facts

ALLOW, REVIEW, HOLD, DENY = Verdict.ALLOW, Verdict.REVIEW, Verdict.HOLD, Verdict.DENY
# Every rule that has a switch is off; tables switch on what they try.
OFF = Parameters(ceiling_minor={"USD": 10_000}, reasons=("requested_by_customer", "goodwill"))


def said(rule: str, facts: dict[str, Any], parameters: dict[str, Any]) -> Said:
    return RULES[rule](replace(FACTS, **facts), replace(OFF, **parameters))


def line(line_id: str, **fields: Any) -> OrderLine:
    return OrderLine(line_id=line_id, amount_minor=1_000, **fields)


Row = tuple[dict[str, Any], dict[str, Any], Verdict, str]

TABLES: dict[str, list[Row]] = {
    "kill_switch": [
        ({}, {}, ALLOW, "no kill switch is on"),
        (
            {"switches": ("global", "agent:agent-1")},
            {},
            HOLD,
            "kill switch on: global, agent:agent-1",
        ),
    ],
    "agent_scope": [
        ({}, {}, ALLOW, "this agent is bound to no account"),
        ({}, {"accounts_by_agent": {"agent-2": ()}}, ALLOW, "this agent is bound to no account"),
        (
            {},
            {"accounts_by_agent": {"agent-1": ("stripe:acct_1", "stripe:")}},
            ALLOW,
            "this agent may act on the account that was paid",
        ),
        (
            {},
            {"accounts_by_agent": {"agent-1": ("stripe:acct_1",)}},
            DENY,
            "this agent may not act on the account that was paid",
        ),
        (
            {"account": "stripe:acct_1"},
            {"accounts_by_agent": {"agent-1": ()}},
            DENY,
            "this agent may not act on the account that was paid",
        ),
        (
            {"account": ""},
            {"accounts_by_agent": {"agent-1": ("stripe:",)}},
            REVIEW,
            "it is not known which account was paid",
        ),
    ],
    "amount_explicit": [
        ({"amount_minor": 1}, {}, ALLOW, "the amount is explicit and in the order's currency"),
        ({"amount_minor": 0}, {}, DENY, "the amount is not positive"),
        ({"amount_minor": -1}, {}, DENY, "the amount is not positive"),
    ],
    "charge_state": [
        ({"captured_minor": 1}, {}, ALLOW, "the payment was captured"),
        ({"captured_minor": 0}, {}, DENY, "nothing was captured"),
    ],
    "headroom": [
        ({"amount_minor": 20_000}, {}, ALLOW, "it fits what is left of the captured amount"),
        (
            {"amount_minor": 20_001},
            {},
            DENY,
            "200.01 USD is more than the 200.00 USD left of 200.00 USD captured (0.00 USD refunded,"
            " 0.00 USD in flight, 0.00 USD disputed, 0.00 USD settled otherwise)",
        ),
        ({"refunded_minor": 12_100}, {}, ALLOW, "it fits what is left of the captured amount"),
        (
            {"refunded_minor": 12_101},
            {},
            DENY,
            "79.00 USD is more than the 78.99 USD left of 200.00 USD captured (121.01 USD refunded,"
            " 0.00 USD in flight, 0.00 USD disputed, 0.00 USD settled otherwise)",
        ),
        ({"reserved_minor": 12_100}, {}, ALLOW, "it fits what is left of the captured amount"),
        (
            {"reserved_minor": 20_001, "own_reservation_minor": 7_900},
            {},
            DENY,
            "79.00 USD is more than the 78.99 USD left of 200.00 USD captured (0.00 USD refunded,"
            " 121.01 USD in flight, 0.00 USD disputed, 0.00 USD settled otherwise)",
        ),
        (
            {"reserved_minor": 20_000, "own_reservation_minor": 7_900},
            {},
            ALLOW,
            "it fits what is left of the captured amount",
        ),
        ({"disputed_minor": 12_100}, {}, ALLOW, "it fits what is left of the captured amount"),
        (
            {"disputed_minor": 12_101},
            {},
            DENY,
            "79.00 USD is more than the 78.99 USD left of 200.00 USD captured (0.00 USD refunded,"
            " 0.00 USD in flight, 121.01 USD disputed, 0.00 USD settled otherwise)",
        ),
        (
            {"settled_otherwise_minor": 12_101},
            {},
            DENY,
            "79.00 USD is more than the 78.99 USD left of 200.00 USD captured (0.00 USD refunded,"
            " 0.00 USD in flight, 0.00 USD disputed, 121.01 USD settled otherwise)",
        ),
        (
            {"captured_minor": 0, "refunded_minor": 100},
            {},
            DENY,
            "79.00 USD is more than the 0.00 USD left of 0.00 USD captured (1.00 USD refunded,"
            " 0.00 USD in flight, 0.00 USD disputed, 0.00 USD settled otherwise)",
        ),
        (
            {"captured_minor": 0, "refunded_minor": 0, "amount_minor": 1},
            {},
            DENY,
            "0.01 USD is more than the 0.00 USD left of 0.00 USD captured (0.00 USD refunded,"
            " 0.00 USD in flight, 0.00 USD disputed, 0.00 USD settled otherwise)",
        ),
    ],
    "dispute_block": [
        ({}, {}, ALLOW, "no dispute is open"),
        ({"dispute_state": "won"}, {}, ALLOW, "no dispute is open"),
        (
            {"dispute_state": "inquiry"},
            {},
            REVIEW,
            "the customer's bank has asked about this payment",
        ),
        (
            {"dispute_state": "open"},
            {},
            DENY,
            "the payment's dispute is open: answer that instead",
        ),
        (
            {"dispute_state": "lost"},
            {},
            DENY,
            "the payment's dispute is lost: answer that instead",
        ),
        ({"dispute_state": ""}, {}, REVIEW, "it is not known whether the payment is disputed"),
    ],
    "facts_reachable": [
        ({}, {}, ALLOW, "the provider can be read"),
        ({"provider_reachable": False}, {}, HOLD, "the provider cannot be read now"),
    ],
    "exchange_rate": [
        ({}, {}, ALLOW, "nothing is counted in another currency"),
        (
            {"currency": "SEK"},
            {"ceiling_by_reason_base_minor": {}, "ceiling_by_agent_base_minor": {}},
            ALLOW,
            "nothing is counted in another currency",
        ),
        (
            {"currency": "SEK"},
            {"velocity": (limit("agent", "hour", review_count=1),)},
            ALLOW,
            "nothing is counted in another currency",
        ),
        *(
            (
                {"currency": "SEK"},
                counted,
                REVIEW,
                "no rate of the last 5 days from SEK to USD",
            )
            for counted in (
                {"tiers": (Tier(tier=1, up_to_base_minor=1), Tier(tier=2, up_to_base_minor=None))},
                {"ceiling_by_reason_base_minor": {"goodwill": 1}},
                {"ceiling_by_agent_base_minor": {"agent-2": 1}},
                {"return_above_base_minor": 0},
                {"velocity": (limit("agent", "hour", review_base_minor=1),)},
                {"budgets": (limit("agent", "day", hold_base_minor=1),)},
                {"goodwill_budgets": (limit("goodwill_total", "30_days", review_base_minor=1),)},
            )
        ),
        (
            {"rates": {}},
            {"return_above_base_minor": 0},
            ALLOW,
            "the amount is known in USD",
        ),
        (
            {"currency": "JPY", "rates_age_days": 5},
            {"return_above_base_minor": 0},
            ALLOW,
            "the amount is known in USD",
        ),
        (
            {"currency": "JPY", "rates_age_days": 6},
            {"return_above_base_minor": 0},
            REVIEW,
            "no rate of the last 5 days from JPY to USD",
        ),
        (
            {"currency": "JPY", "rates_age_days": None},
            {"return_above_base_minor": 0},
            REVIEW,
            "no rate of the last 5 days from JPY to USD",
        ),
    ],
    "per_refund_limit": [
        ({"amount_minor": 9_999}, {}, ALLOW, "it is within the ceiling of 100.00 USD"),
        ({"amount_minor": 10_000}, {}, ALLOW, "it is within the ceiling of 100.00 USD"),
        (
            {"amount_minor": 10_001},
            {},
            REVIEW,
            "100.01 USD is above the ceiling of 100.00 USD",
        ),
        ({"currency": "SEK"}, {}, REVIEW, "no ceiling is set for SEK"),
        (
            {},
            {
                "ceiling_by_reason_base_minor": {"requested_by_customer": 7_900, "goodwill": 1},
                "ceiling_by_agent_base_minor": {"agent-1": 7_900, "agent-2": 1},
            },
            ALLOW,
            "it is within the ceiling of 100.00 USD",
        ),
        (
            {},
            {"ceiling_by_reason_base_minor": {"requested_by_customer": 7_899}},
            REVIEW,
            "79.00 USD is above the ceiling of 78.99 USD of its reason",
        ),
        (
            {},
            {"ceiling_by_agent_base_minor": {"agent-1": 7_899}},
            REVIEW,
            "79.00 USD is above the ceiling of 78.99 USD of its agent",
        ),
        (
            {"currency": "JPY", "amount_minor": 128},
            {"ceiling_minor": {"JPY": 128}, "ceiling_by_agent_base_minor": {"agent-1": 100}},
            ALLOW,
            "it is within the ceiling of 128 JPY",
        ),
        (
            {"currency": "JPY", "amount_minor": 129},
            {"ceiling_minor": {"JPY": 129}, "ceiling_by_agent_base_minor": {"agent-1": 100}},
            REVIEW,
            "1.01 USD is above the ceiling of 1.00 USD of its agent",
        ),
        (
            {"currency": "JPY", "rates": {}},
            {
                "ceiling_minor": {"JPY": 10_000},
                "ceiling_by_reason_base_minor": {"requested_by_customer": 10_000},
            },
            REVIEW,
            "it cannot be compared with the ceiling of 100.00 USD of its reason",
        ),
    ],
    "four_eyes": [
        ({}, {}, ALLOW, "one person would be enough"),
        (
            {},
            {
                "tiers": (
                    Tier(tier=1, up_to_base_minor=7_900),
                    Tier(tier=2, up_to_base_minor=None, people=2),
                )
            },
            ALLOW,
            "one person would be enough",
        ),
        (
            {"amount_minor": 7_901},
            {
                "tiers": (
                    Tier(tier=1, up_to_base_minor=7_900),
                    Tier(tier=2, up_to_base_minor=None, people=2),
                )
            },
            REVIEW,
            "2 people of tier 2 must approve it",
        ),
        (
            {},
            {
                "tiers": (
                    Tier(tier=1, up_to_base_minor=7_900),
                    Tier(tier=3, up_to_base_minor=None, people=3),
                ),
                "tier_by_reason": {"requested_by_customer": 3},
            },
            REVIEW,
            "3 people of tier 3 must approve it",
        ),
    ],
    "velocity": [
        ({}, {}, ALLOW, "no limit is set"),
        (
            {"usage": used("agent", "hour", count=2)},
            {"velocity": (limit("agent", "hour", review_count=3),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"usage": used("agent", "hour", count=3)},
            {"velocity": (limit("agent", "hour", review_count=3),)},
            REVIEW,
            "4 refunds of this agent within an hour are above the limit of 3 refunds",
        ),
        (
            {"usage": used("agent", "day", count=3)},
            {"velocity": (limit("agent", "hour", review_count=3),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"usage": used("order", "ever", count=4)},
            {"velocity": (limit("order", "ever", review_count=4, hold_count=5),)},
            REVIEW,
            "5 refunds of this order in all are above the limit of 4 refunds",
        ),
        (
            {"usage": used("order", "ever", count=5)},
            {"velocity": (limit("order", "ever", review_count=4, hold_count=5),)},
            HOLD,
            "6 refunds of this order in all are above the limit of 5 refunds",
        ),
        (
            {"usage": used("order", "ever", USD=100)},
            {"velocity": (limit("order", "ever", review_base_minor=8_000),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"usage": used("order", "ever", USD=101)},
            {"velocity": (limit("order", "ever", review_base_minor=8_000),)},
            REVIEW,
            "80.01 USD of this order in all are above the limit of 80.00 USD",
        ),
        (
            {"usage": used("customer", "30_days", EUR=80)},
            {"velocity": (limit("customer", "30_days", review_base_minor=8_000),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"usage": used("customer", "30_days", EUR=80, USD=1)},
            {"velocity": (limit("customer", "30_days", review_base_minor=8_000),)},
            REVIEW,
            "80.01 USD of this customer within 30 days are above the limit of 80.00 USD",
        ),
        (
            {"usage": used("customer", "365_days", SEK=1)},
            {"velocity": (limit("customer", "365_days", review_base_minor=8_000),)},
            REVIEW,
            "no rate of the day for what was refunded by or for this customer within 365 days",
        ),
        (
            {"usage": used("customer", "365_days", SEK=1)},
            {"velocity": (limit("customer", "365_days", review_count=1),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"currency": "SEK"},
            {"velocity": (limit("customer", "365_days", hold_base_minor=8_000),)},
            REVIEW,
            "no rate of the day for what was refunded by or for this customer within 365 days",
        ),
        (
            {"currency": "SEK", "usage": used("order", "ever", count=9)},
            {"velocity": (limit("order", "ever", hold_count=9, hold_base_minor=1),)},
            HOLD,
            "10 refunds of this order in all are above the limit of 9 refunds",
        ),
        (
            {"usage": used("order", "ever", count=9, USD=101)},
            {
                "velocity": (
                    limit("order", "ever", review_count=9, review_base_minor=8_000),
                    limit("agent", "day", review_count=0),
                )
            },
            REVIEW,
            "10 refunds of this order in all are above the limit of 9 refunds; 80.01 USD of this "
            "order in all are above the limit of 80.00 USD; 1 refunds of this agent within 24 "
            "hours are above the limit of 0 refunds",
        ),
        (
            {"usage": unused("agent", "hour")},
            {"velocity": (limit("agent", "hour", review_count=3),)},
            REVIEW,
            "it is not known what was refunded by or for this agent within an hour",
        ),
        (
            {"customer_known": False},
            {"velocity": (limit("customer", "30_days", review_count=3),)},
            REVIEW,
            "it is not known what was refunded by or for this customer within 30 days",
        ),
        (
            {"customer_known": False},
            {"velocity": (limit("agent", "hour", review_count=3),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"customer_known": False, "usage": used("agent", "hour", count=3)},
            {
                "velocity": (
                    limit("agent", "hour", review_count=3),
                    limit("agent", "day", review_count=3),
                    limit("customer", "30_days", review_count=3),
                )
            },
            REVIEW,
            "4 refunds of this agent within an hour are above the limit of 3 refunds; it is not "
            "known what was refunded by or for this customer within 30 days",
        ),
        (
            {"customer_known": False, "usage": used("agent", "hour", count=3)},
            {
                "velocity": (
                    limit("agent", "hour", hold_count=3),
                    limit("customer", "30_days", review_count=3),
                )
            },
            HOLD,
            "4 refunds of this agent within an hour are above the limit of 3 refunds",
        ),
    ],
    "budget": [
        ({}, {}, ALLOW, "no limit is set"),
        (
            {"usage": used("agent", "day", USD=12_100)},
            {"budgets": (limit("agent", "day", review_base_minor=20_000, hold_base_minor=30_000),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"usage": used("agent", "day", USD=12_101)},
            {"budgets": (limit("agent", "day", review_base_minor=20_000, hold_base_minor=30_000),)},
            REVIEW,
            "200.01 USD of this agent within 24 hours are above the limit of 200.00 USD",
        ),
        (
            {"usage": used("total", "day", USD=22_100)},
            {"budgets": (limit("total", "day", review_base_minor=20_000, hold_base_minor=30_000),)},
            REVIEW,
            "300.00 USD of everybody together within 24 hours are above the limit of 200.00 USD",
        ),
        (
            {"usage": used("total", "day", USD=22_101)},
            {"budgets": (limit("total", "day", review_base_minor=20_000, hold_base_minor=30_000),)},
            HOLD,
            "300.01 USD of everybody together within 24 hours are above the limit of 300.00 USD",
        ),
        (
            {"usage": unused("total", "hour")},
            {"budgets": (limit("total", "hour", hold_base_minor=1_000_000),)},
            REVIEW,
            "it is not known what was refunded by or for everybody together within an hour",
        ),
    ],
    "goodwill_budget": [
        ({}, {}, ALLOW, "it is not given for goodwill"),
        (
            {"usage": used("goodwill_agent", "30_days", USD=10**6)},
            {"goodwill_budgets": (limit("goodwill_agent", "30_days", review_base_minor=1),)},
            ALLOW,
            "it is not given for goodwill",
        ),
        ({"reason": "goodwill"}, {}, ALLOW, "no limit is set"),
        (
            {"reason": "goodwill", "usage": used("goodwill_agent", "30_days", USD=100)},
            {"goodwill_budgets": (limit("goodwill_agent", "30_days", review_base_minor=8_000),)},
            ALLOW,
            "it is within every limit",
        ),
        (
            {"reason": "goodwill", "usage": used("goodwill_agent", "30_days", USD=101)},
            {"goodwill_budgets": (limit("goodwill_agent", "30_days", review_base_minor=8_000),)},
            REVIEW,
            "80.01 USD of this agent, for goodwill, within 30 days are above the limit of 80.00 "
            "USD",
        ),
        (
            {"reason": "goodwill", "usage": used("goodwill_total", "30_days", count=7)},
            {"goodwill_budgets": (limit("goodwill_total", "30_days", hold_count=7),)},
            HOLD,
            "8 refunds of everybody together, for goodwill, within 30 days are above the limit of "
            "7 refunds",
        ),
    ],
    "anomaly": [
        (
            {"usage": used("agent", "hour", count=10**6)},
            {},
            ALLOW,
            "no anomaly is looked for",
        ),
        (
            {"usage": used("agent", "hour", count=18)},
            {"anomaly_factor": 5},
            ALLOW,
            "this agent proposes about as much as before",
        ),
        (
            {"usage": used("agent", "hour", count=19)},
            {"anomaly_factor": 5},
            HOLD,
            "this agent proposed 20 refunds within an hour and 0 in the 23 hours before",
        ),
        (
            {
                "usage": tuple(
                    replace(u, count={"hour": 22, "day": 22 + 115}[u.window])
                    for u in FACTS.usage
                    if u.scope == "agent"
                )
            },
            {"anomaly_factor": 5, "anomaly_floor_count": 1},
            ALLOW,
            "this agent proposes about as much as before",
        ),
        (
            # The 23 hours before had a mean of 5, and 25 is five times that.
            {
                "usage": tuple(
                    replace(u, count={"hour": 24, "day": 24 + 115}[u.window])
                    for u in FACTS.usage
                    if u.scope == "agent"
                )
            },
            {"anomaly_factor": 5},
            HOLD,
            "this agent proposed 25 refunds within an hour and 115 in the 23 hours before",
        ),
        (
            {
                "usage": tuple(
                    replace(u, count={"hour": 24, "day": 24 + 116}[u.window])
                    for u in FACTS.usage
                    if u.scope == "agent"
                )
            },
            {"anomaly_factor": 5},
            ALLOW,
            "this agent proposes about as much as before",
        ),
        (
            {"usage": unused("agent", "hour")},
            {"anomaly_factor": 1},
            REVIEW,
            "it is not known how much this agent proposed lately",
        ),
        (
            {"usage": unused("agent", "day")},
            {"anomaly_factor": 1},
            REVIEW,
            "it is not known how much this agent proposed lately",
        ),
    ],
    "reason_allowlist": [
        ({}, {}, ALLOW, "the reason is on the list"),
        ({"reason": "because"}, {}, DENY, "the reason 'because' is not on the list"),
        (
            {"reason": "fraudulent"},
            {"reasons": ("fraudulent",)},
            DENY,
            "an agent may not call a customer fraudulent",
        ),
        (
            {},
            {"reasons_by_agent": {"agent-1": ("requested_by_customer",), "agent-2": ()}},
            ALLOW,
            "the reason is on the list",
        ),
        (
            {},
            {"reasons_by_agent": {"agent-1": ("goodwill",)}},
            DENY,
            "the reason 'requested_by_customer' is not on this agent's list",
        ),
        (
            {"reason": "because"},
            {"reasons_by_agent": {"agent-1": ("because",)}},
            DENY,
            "the reason 'because' is not on the list",
        ),
    ],
    "window_days": [
        ({"placed_at": None, "decided_at": ""}, {}, ALLOW, "no window is set"),
        ({}, {"window_days": 3}, ALLOW, "it is within 3 days"),
        (
            {},
            {"window_days": 2},
            REVIEW,
            "the order was placed 3 days ago, and the window is 2 days",
        ),
        ({}, {"window_days": 2, "window_from": "delivered"}, ALLOW, "it is within 2 days"),
        (
            {},
            {"window_days": 1, "window_from": "delivered"},
            REVIEW,
            "the order was delivered 2 days ago, and the window is 1 days",
        ),
        (
            {"placed_at": None},
            {"window_days": 3},
            REVIEW,
            "it is not known when the order was placed",
        ),
        (
            {"delivered_at": None},
            {"window_days": 3, "window_from": "delivered"},
            REVIEW,
            "it is not known when the order was delivered",
        ),
        (
            {"decided_at": ""},
            {"window_days": 3},
            REVIEW,
            "it is not known when the order was placed",
        ),
        *(
            (
                {"placed_at": unreadable},
                {"window_days": 3},
                REVIEW,
                "it is not known when the order was placed",
            )
            for unreadable in ("2026-03-01T12:00:00", "2026-03-01", "yesterday")
        ),
        (
            # No zone west of UTC has this day in any calendar.
            {"placed_at": "0001-01-01T00:00:00+00:00"},
            {"window_days": 3, "time_zone": "America/New_York"},
            REVIEW,
            "it is not known when the order was placed",
        ),
        (
            {"placed_at": "2026-03-05T12:00:00+00:00"},
            {"window_days": 3},
            REVIEW,
            "the order was placed -1 days ago, and the window is 3 days",
        ),
        ({"placed_at": "2026-03-04T23:00:00Z"}, {"window_days": 3}, ALLOW, "it is within 3 days"),
        (
            # Bought on March 1 at 23:30 in Berlin; March 31 is its day 30, to the last second, in
            # spite of the hour that the clocks were put forward on March 29.
            {
                "placed_at": "2026-03-01T22:30:00+00:00",
                "decided_at": "2026-03-31T21:59:59+00:00",
            },
            {"window_days": 30, "time_zone": "Europe/Berlin"},
            ALLOW,
            "it is within 30 days",
        ),
        (
            {
                "placed_at": "2026-03-01T22:30:00+00:00",
                "decided_at": "2026-03-31T22:00:00+00:00",
            },
            {"window_days": 30, "time_zone": "Europe/Berlin"},
            REVIEW,
            "the order was placed 31 days ago, and the window is 30 days",
        ),
        (
            # The same two moments are on other days in other zones.
            {
                "placed_at": "2026-03-01T22:30:00+00:00",
                "decided_at": "2026-03-31T22:00:00+00:00",
            },
            {"window_days": 30, "time_zone": "UTC"},
            ALLOW,
            "it is within 30 days",
        ),
        (
            # A day of 25 hours is one day: put back on October 25.
            {
                "placed_at": "2026-10-24T22:30:00+00:00",
                "decided_at": "2026-10-26T22:59:59+00:00",
            },
            {"window_days": 1, "time_zone": "Europe/Berlin"},
            ALLOW,
            "it is within 1 days",
        ),
        (
            {
                "placed_at": "2028-02-28T12:00:00+00:00",
                "decided_at": "2028-03-01T12:00:00+00:00",
            },
            {"window_days": 1},
            REVIEW,
            "the order was placed 2 days ago, and the window is 1 days",
        ),
    ],
    "method_window": [
        ({"payment_method": ""}, {}, ALLOW, "no payment method has a window"),
        (
            {"placed_at": None},
            {"method_window_days": {"fpx": 60}},
            ALLOW,
            "this payment method has no window",
        ),
        (
            {"payment_method": ""},
            {"method_window_days": {"fpx": 60}},
            REVIEW,
            "it is not known how the order was paid",
        ),
        (
            {},
            {"method_window_days": {"card": 3}},
            ALLOW,
            "the payment method still refunds",
        ),
        (
            {"decided_at": "2026-03-04T12:00:01+00:00"},
            {"method_window_days": {"card": 3}},
            REVIEW,
            "card refunds for 3 days after the payment",
        ),
        (
            {"placed_at": "2026-03-04T12:00:00+00:00"},
            {"method_window_days": {"card": 3}},
            ALLOW,
            "the payment method still refunds",
        ),
        (
            {"placed_at": "2026-03-04T12:00:01+00:00"},
            {"method_window_days": {"card": 3}},
            REVIEW,
            "card refunds for 3 days after the payment",
        ),
        (
            {"placed_at": None},
            {"method_window_days": {"card": 3}},
            REVIEW,
            "it is not known when the order was placed",
        ),
        (
            {"decided_at": ""},
            {"method_window_days": {"card": 3}},
            REVIEW,
            "it is not known when the order was placed",
        ),
    ],
    "final_sale": [
        (
            {"order_lines": (line("lamp", final_sale=True),)},
            {},
            ALLOW,
            "final sales are refunded like others",
        ),
        (
            {"order_lines": None},
            {"final_sale_verdict": "REVIEW"},
            ALLOW,
            "no line of the order is marked as sold finally or not",
        ),
        (
            {"order_lines": (line("lamp"), line("vase"))},
            {"final_sale_verdict": "REVIEW"},
            ALLOW,
            "no line of the order is marked as sold finally or not",
        ),
        ({}, {"final_sale_verdict": "REVIEW"}, ALLOW, "no line was sold finally"),
        (
            {"order_lines": (line("lamp", final_sale=False), line("vase"))},
            {"final_sale_verdict": "DENY"},
            REVIEW,
            "it is not known of every line whether it was sold finally",
        ),
        (
            {
                "order_lines": (line("lamp", final_sale=False), line("vase")),
                "lines": lines(lamp=100),
            },
            {"final_sale_verdict": "DENY"},
            ALLOW,
            "no line was sold finally",
        ),
        (
            {
                "order_lines": (line("lamp", final_sale=False), line("vase", final_sale=True)),
                "lines": lines(vase=100),
            },
            {"final_sale_verdict": "REVIEW"},
            REVIEW,
            "a line was sold finally",
        ),
        (
            {
                "order_lines": (line("lamp", final_sale=False), line("vase", final_sale=True)),
                "lines": lines(lamp=100, vase=100),
            },
            {"final_sale_verdict": "DENY"},
            DENY,
            "a line was sold finally",
        ),
        (
            {"order_lines": (line("lamp", final_sale=False), line("vase", final_sale=True))},
            {"final_sale_verdict": "DENY"},
            REVIEW,
            "a line of the order was sold finally, and the refund names no lines",
        ),
        (
            {
                "order_lines": (line("vase", final_sale=True),),
                "lines": lines(lamp=100),
            },
            {"final_sale_verdict": "DENY"},
            REVIEW,
            "it is not known of every line whether it was sold finally",
        ),
        (
            {
                "order_lines": (line("vase", final_sale=True),),
                "lines": lines(shipping=100),
            },
            {"final_sale_verdict": "DENY"},
            ALLOW,
            "no line was sold finally",
        ),
    ],
    "return_evidence": [
        (
            {"order_lines": (line("lamp", returned=False),)},
            {"return_reasons": ("requested_by_customer",)},
            ALLOW,
            "nothing has to come back first",
        ),
        (
            {"order_lines": (line("lamp", returned=False),)},
            {"return_reasons": ("goodwill",), "return_above_base_minor": 0},
            ALLOW,
            "nothing has to come back first",
        ),
        (
            {"order_lines": (line("lamp", returned=False),)},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 7_900},
            ALLOW,
            "for this amount nothing has to come back",
        ),
        (
            {"order_lines": (line("lamp", returned=False), line("vase"))},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 7_899},
            REVIEW,
            "the goods have not come back",
        ),
        (
            {"currency": "SEK", "order_lines": (line("lamp", returned=False),)},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 7_900},
            REVIEW,
            "the goods have not come back",
        ),
        (
            {"currency": "SEK"},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 7_900},
            ALLOW,
            "the goods have come back",
        ),
        (
            {},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 0},
            ALLOW,
            "the goods have come back",
        ),
        (
            {"order_lines": None},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 0},
            REVIEW,
            "it is not known of every line whether it came back",
        ),
        (
            {"order_lines": (line("lamp", returned=True), line("vase"))},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 0},
            REVIEW,
            "it is not known of every line whether it came back",
        ),
        (
            {
                "order_lines": (line("lamp", returned=True), line("vase", returned=False)),
                "lines": lines(lamp=100, shipping=50),
            },
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 0},
            ALLOW,
            "the goods have come back",
        ),
        (
            {"order_lines": (line("lamp", returned=True),), "lines": lines(cup=100)},
            {"return_reasons": ("requested_by_customer",), "return_above_base_minor": 0},
            REVIEW,
            "it is not known of every line whether it came back",
        ),
    ],
    "component_caps": [
        ({"lines": lines(cup=1)}, {}, ALLOW, "lines have no caps of their own"),
        (
            {"amount_minor": 20_000},
            {"component_caps": True},
            ALLOW,
            "it is all that is left of the order",
        ),
        (
            {"amount_minor": 19_999},
            {"component_caps": True},
            REVIEW,
            "it names no lines, and it is not all that is left of the order",
        ),
        (
            {"lines": lines(lamp=7_900)},
            {"component_caps": True},
            ALLOW,
            "every line has it left: 65.83 USD and 13.17 USD tax",
        ),
        (
            {"amount_minor": 12_000, "lines": lines(lamp=12_000)},
            {"component_caps": True},
            ALLOW,
            "every line has it left: 100.00 USD and 20.00 USD tax",
        ),
        (
            {"amount_minor": 12_001, "lines": lines(lamp=12_001)},
            {"component_caps": True},
            DENY,
            "120.01 USD is more than the 120.00 USD left of line lamp",
        ),
        (
            {
                "amount_minor": 502,
                "lines": lines(vase=1, shipping=501),
                "lines_refunded_minor": {"vase": 7_600},
            },
            {"component_caps": True},
            DENY,
            "5.01 USD is more than the 5.00 USD left of line shipping; "
            "0.01 USD is more than the 0.00 USD left of line vase",
        ),
        (
            {"amount_minor": 200, "lines": (*lines(lamp=100), *lines(lamp=100))},
            {"component_caps": True},
            ALLOW,
            "every line has it left: 1.67 USD and 0.33 USD tax",
        ),
        (
            {
                "amount_minor": 200,
                "lines": (*lines(lamp=100), *lines(lamp=100)),
                "lines_refunded_minor": {"lamp": 11_801},
            },
            {"component_caps": True},
            DENY,
            "2.00 USD is more than the 1.99 USD left of line lamp",
        ),
        (
            {"lines": lines(lamp=7_899)},
            {"component_caps": True},
            DENY,
            "its lines are 78.99 USD and not 79.00 USD",
        ),
        (
            {"lines": lines(lamp=7_901)},
            {"component_caps": True},
            DENY,
            "its lines are 79.01 USD and not 79.00 USD",
        ),
        (
            {"lines": lines(lamp=7_900, vase=0)},
            {"component_caps": True},
            DENY,
            "a line's amount is not positive",
        ),
        (
            {"lines": lines(lamp=8_000, vase=-100)},
            {"component_caps": True},
            DENY,
            "a line's amount is not positive",
        ),
        (
            {"lines": lines(lamp=7_800, cup=100)},
            {"component_caps": True},
            DENY,
            "it names a line that the order does not have",
        ),
        (
            {"lines": lines(lamp=7_800, cup=50, shipping=50), "shipping_minor": None},
            {"component_caps": True},
            DENY,
            "it names a line that the order does not have",
        ),
        (
            {"lines": lines(lamp=7_800, shipping=100), "shipping_minor": None},
            {"component_caps": True},
            REVIEW,
            "it is not known what the shipping was",
        ),
        (
            {"lines": lines(lamp=7_400, shipping=500)},
            {"component_caps": True},
            ALLOW,
            "every line has it left: 66.67 USD and 12.33 USD tax",
        ),
        (
            {"lines": lines(lamp=7_900), "order_lines": None},
            {"component_caps": True},
            REVIEW,
            "it is not known which lines the order has",
        ),
    ],
    "customer_risk": [
        ({"customer_risk": None}, {}, ALLOW, "nothing is said about the customer's risk"),
        (
            {"customer_risk": None},
            {"risk_required": True},
            REVIEW,
            "the customer's risk is not known",
        ),
        (
            {},
            {"risk_required": True, "risk_review": ("high",), "risk_deny": ("blocked",)},
            ALLOW,
            "the customer's risk is accepted",
        ),
        (
            {"customer_risk": "high"},
            {"risk_review": ("high",), "risk_deny": ("blocked",)},
            REVIEW,
            "the customer's risk is high",
        ),
        (
            {"customer_risk": "blocked"},
            {"risk_review": ("high", "blocked"), "risk_deny": ("blocked",)},
            DENY,
            "the customer's risk is blocked",
        ),
    ],
    "agent_probation": [
        ({"agent_succeeded": None}, {}, ALLOW, "agents have no probation"),
        ({"agent_succeeded": 0}, {}, ALLOW, "agents have no probation"),
        (
            {"agent_succeeded": 50},
            {"probation_refunds": 50},
            ALLOW,
            "this agent's probation is over",
        ),
        (
            {"agent_succeeded": 49},
            {"probation_refunds": 50},
            REVIEW,
            "49 refunds of this agent succeeded, of the first 50",
        ),
        (
            {"agent_succeeded": None},
            {"probation_refunds": 50},
            REVIEW,
            "it is not known how many refunds of this agent succeeded",
        ),
    ],
    "provider_searchable": [
        ({}, {}, ALLOW, "a lost answer can be found out"),
        (
            {"provider_searchable": None, "amount_minor": 0},
            {},
            REVIEW,
            "it is not known whether the provider can be searched",
        ),
        (
            {"provider_searchable": False},
            {"unsearchable_ceiling_minor": 7_900},
            ALLOW,
            "a lost answer can be found out",
        ),
        (
            {"provider_searchable": False},
            {"unsearchable_ceiling_minor": 7_899},
            REVIEW,
            "a lost answer of this provider could not be found out",
        ),
    ],
    "open_action": [
        ({}, {}, ALLOW, "nothing else of this order is open"),
        *(
            (
                {"others": (other(state),)},
                {},
                REVIEW,
                f"another refund of this order is open: refund:order-4821:request-0 is {state}",
            )
            for state in ("SUBMITTING", "UNKNOWN", "PENDING", "FAILED_FINAL")
        ),
        *(
            ({"others": (other(state),)}, {}, ALLOW, "nothing else of this order is open")
            for state in ("SUCCEEDED", "AUTHORIZED")
        ),
        (
            {"others": tuple(other("PENDING", number=number) for number in range(4))},
            {},
            REVIEW,
            "another refund of this order is open: refund:order-4821:request-0 is PENDING, "
            "refund:order-4821:request-1 is PENDING, refund:order-4821:request-2 is PENDING",
        ),
        ({"open_cases": 1}, {}, REVIEW, "a case is open on this order"),
        (
            {"open_cases": 1, "others": (other("UNKNOWN"),)},
            {"review_beside_open": False},
            ALLOW,
            "the merchant allows refunds side by side",
        ),
    ],
    "duplicate_suspect": [
        ({}, {}, ALLOW, "no refund of the same amount or line lately"),
        (
            {"others": (other("SUCCEEDED", amount_minor=7_900),)},
            {},
            REVIEW,
            "refund:order-4821:request-0 refunded the same amount 1.0 hours ago",
        ),
        *(
            (
                {"others": (other("SUCCEEDED", amount_minor=amount),)},
                {},
                ALLOW,
                "no refund of the same amount or line lately",
            )
            for amount in (7_899, 7_901)
        ),
        (
            {"others": (other("SUCCEEDED", amount_minor=7_900, age_seconds=72 * HOUR - 1),)},
            {},
            REVIEW,
            "refund:order-4821:request-0 refunded the same amount 72.0 hours ago",
        ),
        (
            {"others": (other("SUCCEEDED", amount_minor=7_900, age_seconds=72 * HOUR),)},
            {},
            ALLOW,
            "no refund of the same amount or line lately",
        ),
        (
            {"others": (other("SUCCEEDED", amount_minor=7_900, age_seconds=1_000 * HOUR),)},
            {"same_amount_window_seconds": 10**7},
            REVIEW,
            "refund:order-4821:request-0 refunded the same amount 1000.0 hours ago",
        ),
        (
            {"others": (other("PENDING", amount_minor=7_900, age_seconds=900 * HOUR),)},
            {},
            REVIEW,
            "refund:order-4821:request-0, of the same amount, is PENDING",
        ),
        (
            {"others": (other("AUTHORIZED", amount_minor=7_900),)},
            {},
            ALLOW,
            "no refund of the same amount or line lately",
        ),
        (
            {
                "others": (other("SUCCEEDED", amount_minor=7_900), other("UNKNOWN")),
                "lines": lines(lamp=7_900),
            },
            {"same_amount_window_seconds": 0},
            ALLOW,
            "no refund of the same amount or line lately",
        ),
        (
            {
                "others": (other("UNKNOWN", amount_minor=7_900),),
            },
            {"same_amount_window_seconds": 0},
            ALLOW,
            "no refund of the same amount or line lately",
        ),
        (
            {
                "others": (other("SUCCEEDED", line_ids=("cup", "vase")),),
                "lines": lines(lamp=7_800, vase=100),
            },
            {},
            REVIEW,
            "refund:order-4821:request-0 refunded the same line 1.0 hours ago",
        ),
        (
            {
                "others": (other("UNKNOWN", line_ids=("vase",)),),
                "lines": lines(vase=7_900),
            },
            {},
            REVIEW,
            "refund:order-4821:request-0, of the same line, is UNKNOWN",
        ),
        (
            {
                "others": (other("SUCCEEDED", line_ids=("cup",)),),
                "lines": lines(lamp=7_900),
            },
            {},
            ALLOW,
            "no refund of the same amount or line lately",
        ),
    ],
    "stale_evidence": [
        (
            {"order_age_seconds": None},
            {},
            ALLOW,
            "an order may have been stated at any time",
        ),
        (
            {"order_age_seconds": 600.0},
            {"order_max_age_seconds": 600},
            ALLOW,
            "the merchant stated the order lately",
        ),
        (
            {"order_age_seconds": 601.0},
            {"order_max_age_seconds": 600},
            REVIEW,
            "the merchant stated the order 601 seconds ago, more than 600",
        ),
        (
            {"order_age_seconds": None},
            {"order_max_age_seconds": 600},
            REVIEW,
            "it is not known when the merchant stated the order",
        ),
    ],
    "sample_qa": [
        ({}, {}, ALLOW, "it is not in the sample"),
        ({}, {"sample_qa_per_mille": 1000}, ALLOW, "it is marked for a later look"),
    ],
}
ROWS = [(rule, *row) for rule, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize(("rule", "facts", "parameters", "verdict", "why"), ROWS)
def test_what_a_rule_says(
    rule: str, facts: dict[str, Any], parameters: dict[str, Any], verdict: Verdict, why: str
) -> None:
    result = said(rule, facts, parameters)
    assert (result.verdict, result.why) == (verdict, why)
    if rule != "four_eyes":
        assert result.tier == (1 if verdict is REVIEW else 0)


def test_every_rule_stands_in_the_table_in_its_order() -> None:
    assert list(TABLES) == list(RULES)
    for rule, rows in TABLES.items():
        assert len({verdict for _, _, verdict, _ in rows}) > (0 if rule == "sample_qa" else 1), rule


# -- what a rule says beside its verdict ----------------------------------------------------------


TIERS = (
    Tier(tier=1, up_to_base_minor=10_000),
    Tier(tier=2, up_to_base_minor=20_000),
    Tier(tier=3, up_to_base_minor=None, people=2),
)


@pytest.mark.parametrize(
    ("scope", "window", "used_minor", "tier"),
    [
        # With this refund's 79.00: the sum of what one receiver gets says who must decide.
        ("order", "ever", 2_100, 1),
        ("order", "ever", 2_101, 2),
        ("order", "ever", 12_100, 2),
        ("order", "ever", 12_101, 3),
        ("customer", "30_days", 12_101, 3),
        # What many receive together is no one's refund in parts.
        ("agent", "day", 12_101, 1),
        ("total", "day", 12_101, 1),
    ],
)
def test_the_parts_of_what_one_receiver_gets_need_who_the_sum_needs(
    scope: str, window: str, used_minor: int, tier: int
) -> None:
    usage = {"usage": used(scope, window, USD=used_minor)}
    limits = (limit(scope, window, review_count=0, review_base_minor=1),)
    parameters = {"velocity": limits, "tiers": TIERS, "tier_by_reason": {}}
    assert said("velocity", usage, parameters).tier == tier


def test_the_tier_of_a_sum_is_asked_for_by_its_review_only() -> None:
    usage = {"usage": used("order", "ever", USD=12_101)}
    within = (limit("order", "ever", review_base_minor=20_001),)
    assert said("velocity", usage, {"velocity": within, "tiers": TIERS}).tier == 0
    holds = (limit("order", "ever", review_base_minor=1, hold_base_minor=1),)
    assert said("velocity", usage, {"velocity": holds, "tiers": TIERS}).tier == 0
    # The reason counts beside the sum.
    above = (limit("order", "ever", review_base_minor=1),)
    small = {"usage": used("order", "ever", USD=1)}
    by_reason = {"velocity": above, "tiers": TIERS, "tier_by_reason": {"late": 3}}
    assert said("velocity", {**small, "reason": "late"}, by_reason).tier == 3
    assert said("velocity", {**small, "reason": "damaged"}, by_reason).tier == 1


@pytest.mark.parametrize("state", ["AWAITING_APPROVAL", "HELD", "SUBMITTING", "FAILED_FINAL"])
def test_what_awaits_a_decision_is_open_like_what_awaits_an_answer(state: str) -> None:
    found = said("open_action", {"others": (other(state, number=3),)}, {})
    assert (found.verdict, found.related) == (REVIEW, ("refund:order-4821:request-3",))


def test_what_is_alike_or_open_is_named_for_a_person_to_see_side_by_side() -> None:
    others = (
        other("SUCCEEDED", amount_minor=7_900, number=1),
        other("SUCCEEDED", number=2),
        other("UNKNOWN", amount_minor=7_900, number=3),
        other("PENDING", number=4),
    )
    alike = said("duplicate_suspect", {"others": others}, {})
    assert alike.related == ("refund:order-4821:request-1", "refund:order-4821:request-3")
    beside = said("open_action", {"others": others}, {})
    assert beside.related == ("refund:order-4821:request-3", "refund:order-4821:request-4")
    assert said("open_action", {"open_cases": 1}, {}).related == ()


def test_a_refund_above_its_ceiling_asks_for_the_tier_of_its_amount() -> None:
    tiers = (Tier(tier=1, up_to_base_minor=100), Tier(tier=2, up_to_base_minor=None))
    above: tuple[dict[str, Any], ...] = (
        {"ceiling_minor": {}},
        {"ceiling_minor": {"USD": 1}},
        {"ceiling_by_reason_base_minor": {"requested_by_customer": 1}},
    )
    for changes in above:
        assert said("per_refund_limit", {}, {**changes, "tiers": tiers}).tier == 2
        assert said("per_refund_limit", {}, changes).tier == 1
    unknown: dict[str, Any] = {
        "ceiling_minor": {"SEK": 9_000},
        "ceiling_by_agent_base_minor": {"agent-1": 9_000},
    }
    assert said("per_refund_limit", {"currency": "SEK"}, {**unknown, "tiers": tiers}).tier == 2
    four = said(
        "four_eyes",
        {},
        {"tiers": (tiers[0], Tier(tier=3, up_to_base_minor=None, people=2))},
    )
    assert four.tier == 3


def test_the_sample_is_the_same_whenever_it_is_drawn_and_about_as_large_as_asked_for() -> None:
    def drawn(per_mille: int) -> set[int]:
        return {
            number
            for number in range(2_000)
            if said(
                "sample_qa", {"action_id": f"a-{number}"}, {"sample_qa_per_mille": per_mille}
            ).tag
            == "qa_sample"
        }

    # The first eight bytes of sha256(b"a-0") are a number that ends in these three digits.
    number = 835
    for per_mille, tag in ((number, ""), (number + 1, "qa_sample")):
        sample = {"sample_qa_per_mille": per_mille}
        assert said("sample_qa", {"action_id": "a-0"}, sample).tag == tag
    assert drawn(0) == set()
    assert drawn(20) == drawn(20)
    assert 20 <= len(drawn(20)) <= 60
    assert drawn(20) < drawn(100)
    assert len(drawn(1000)) == 2_000


# -- all rules together ---------------------------------------------------------------------------


def test_ordinary_facts_are_allowed_with_every_rule_s_part_in_it() -> None:
    decision = evaluate(FACTS, DEFAULT_PARAMETERS)
    assert decision.verdict is ALLOW
    assert [result.rule for result in decision.rules] == list(RULES)
    assert (decision.tier, decision.people) == (1, 1)
    assert (decision.base_minor, decision.base_currency) == (7_900, "USD")


def test_a_shop_that_states_only_orders_and_amounts_can_run_the_default_policy() -> None:
    bare = with_facts(
        delivered_at=None,
        payment_method="",
        customer_risk=None,
        shipping_minor=None,
        order_lines=None,
        agent_succeeded=None,
        rates={},
        rates_day="",
        rates_age_days=None,
    )
    assert evaluate(bare, DEFAULT_PARAMETERS).verdict is ALLOW
    assert evaluate(replace(bare, amount_minor=10_001), DEFAULT_PARAMETERS).verdict is REVIEW


def test_facts_that_are_only_what_an_order_cannot_be_without_need_a_person() -> None:
    """What an older version recorded has no usage; a limit without it allows nothing."""
    assert evaluate(replace(FACTS, usage=()), DEFAULT_PARAMETERS).verdict is REVIEW


def test_a_merchant_may_allow_refunds_side_by_side_and_equal_ones() -> None:
    loose = replace(DEFAULT_PARAMETERS, review_beside_open=False, same_amount_window_seconds=0)
    facts = with_facts(
        open_cases=1, others=(other("UNKNOWN"), other("SUCCEEDED", amount_minor=7_900))
    )
    assert evaluate(facts, loose).verdict is ALLOW


def test_why_names_only_what_made_the_verdict() -> None:
    decision = evaluate(with_facts(reason="because", amount_minor=10_001), DEFAULT_PARAMETERS)
    assert decision.verdict is DENY
    assert "not on the list" in decision.why
    assert "ceiling" not in decision.why


@pytest.mark.parametrize(
    ("amount_minor", "reason", "tier", "people"),
    [
        (500_00, "late", 1, 1),
        (500_01, "late", 2, 1),
        (2_000_00, "late", 2, 1),
        (2_000_01, "late", 3, 2),
        (1, "damaged", 2, 1),
        (2_000_01, "damaged", 3, 2),
        (None, "late", 3, 2),
    ],
)
def test_who_decides_follows_the_amount_and_the_reason(
    amount_minor: int | None, reason: str, tier: int, people: int
) -> None:
    parameters = replace(DEFAULT_PARAMETERS, tier_by_reason={"damaged": 2})
    row = tier_for(base_minor=amount_minor, reason=reason, parameters=parameters)
    assert (row.tier, row.people) == (tier, people)
    facts = with_facts(
        captured_minor=10**7,
        amount_minor=amount_minor or 1,
        reason=reason,
        currency="USD" if amount_minor else "SEK",
    )
    decision = evaluate(facts, parameters)
    assert (decision.tier, decision.people) == (tier, people)


def test_a_reason_s_tier_without_a_row_is_the_next_above_or_the_last() -> None:
    tiers = (Tier(tier=1, up_to_base_minor=100), Tier(tier=3, up_to_base_minor=None, people=2))
    between = replace(OFF, tiers=tiers, tier_by_reason={"goodwill": 2})
    assert tier_for(base_minor=1, reason="goodwill", parameters=between) == tiers[1]
    beyond = replace(OFF, tiers=tiers[:1], tier_by_reason={"goodwill": 2})
    assert tier_for(base_minor=1, reason="goodwill", parameters=beyond) == tiers[0]
    assert tier_for(base_minor=101, reason="goodwill", parameters=beyond) == tiers[0]


def test_the_amount_of_a_decision_is_in_the_base_currency_where_it_is_exact() -> None:
    parameters = replace(DEFAULT_PARAMETERS, base_currency="EUR")
    assert evaluate(FACTS, parameters).base_minor == 6_320
    assert evaluate(FACTS, parameters).base_currency == "EUR"
    assert evaluate(replace(FACTS, rates={}), parameters).base_minor is None
    yen = replace(DEFAULT_PARAMETERS, base_currency="JPY")
    most = with_facts(currency="KWD", amount_minor=AMOUNT_MINOR_MAX)
    assert evaluate(most, DEFAULT_PARAMETERS).base_minor is not None
    unit = with_facts(amount_minor=AMOUNT_MINOR_MAX)
    assert evaluate(unit, DEFAULT_PARAMETERS).base_minor == AMOUNT_MINOR_MAX
    cheap = replace(most, rates={**FACTS.rates, "JPY": "16000"})
    assert evaluate(cheap, yen).base_minor is None
    assert evaluate(cheap, yen).tier == 3
