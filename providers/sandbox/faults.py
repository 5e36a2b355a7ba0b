"""Everything that can be made to go wrong, and the script that says when.

A fault belongs to one stage of a request. At each stage the first rule that matches, has let its
`skip` requests by and has `times` left fires. Rules of different stages can fire on one request.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from . import errors, ids, listing
from .errors import StripeError
from .messages import HTML_TYPE, Answer

if TYPE_CHECKING:
    from .exchange import Exchange

Stage = Literal["switch", "arrival", "auth", "limiter", "key", "execution", "answer"]
Match = dict[str, Any]
Params = dict[str, Any]

CREATE_REFUND: Match = {"method": "POST", "path": "/v1/refunds"}
LIST_REFUNDS: Match = {"method": "GET", "path": "/v1/refunds"}
MATCH_FIELDS = ("method", "path", "idempotency_key", "metadata", "params", "account")


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of FAULTS. `executed` says whether the effect exists after the first time.

    Just one of `arrive` (answers instead of everything), `error` (refuses at its stage, after
    executing when `execute_first`) and `change` (bends the answer) is set, or none where the
    pipeline or the server itself carries the fault out.
    """

    stage: Stage
    executed: Literal["yes", "no", "late", "as usual"]
    wire: str
    match: Match = field(default_factory=lambda: CREATE_REFUND)
    params: Params = field(default_factory=dict)
    arrive: Callable[[Params, Exchange], Answer | None] | None = None
    error: Callable[[Params, Exchange], StripeError] | None = None
    change: Callable[[Params, Answer, Exchange], Answer] | None = None
    execute_first: bool = False


HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
HTML_ANSWER_TYPE = (("Content-Type", HTML_TYPE),)


# Instead of everything


def _drop(kind: str) -> Callable[[Params, Exchange], Answer]:
    return lambda params, exchange: Answer(0, b"").sent_by(kind, **params)


def _sleep(params: Params, exchange: Exchange) -> None:
    exchange.world.stopping.wait(params["seconds"])


def _html(status: int) -> Callable[[Params, Exchange], Answer]:
    return lambda params, exchange: Answer(status, HTML, HTML_ANSWER_TYPE)


def _redirect(params: Params, exchange: Exchange) -> Answer:
    location = params["location"] or exchange.request.path
    return Answer(307, b"", (("Content-Type", HTML_TYPE), ("Location", location)))


def _api_error(params: Params, exchange: Exchange) -> Answer:
    return exchange.error_answer(errors.internal())


# After the work was done


def _deliver(kind: str) -> Callable[[Params, Answer, Exchange], Answer]:
    return lambda params, answer, exchange: answer.sent_by(kind, **params)


def _html_instead(status: int) -> Callable[[Params, Answer, Exchange], Answer]:
    return lambda params, answer, exchange: Answer(status, HTML, HTML_ANSWER_TYPE)


def _empty(params: Params, answer: Answer, exchange: Exchange) -> Answer:
    return Answer(500, b"", HTML_ANSWER_TYPE)


def _json_without_error(params: Params, answer: Answer, exchange: Exchange) -> Answer:
    return replace(answer, status=params["status"], body=b'{"status": "something went wrong"}')


def _swapped(params: Params, answer: Answer, exchange: Exchange) -> Answer:
    """The whole answer of another of its kind; a made-up one if there is no other yet."""
    mine = json.loads(answer.body)
    others = exchange.effects_other_than(mine.get("id"))
    if others:
        other = others[-1]
    elif "error" in mine:
        return answer  # nothing to bend, nothing to show instead
    else:
        shared = ids.infix()
        other = mine | {"metadata": {}, "_key": ids.new("key")}
        if exchange.effect_kind == "refund":
            other |= {
                "id": ids.new("re", shared),
                "charge": ids.new("ch", shared),
                "payment_intent": ids.new("pi", ids.infix()),
            }
        else:
            other |= {"id": ids.new("cbtxn"), "customer": ids.new("cus")}
    answer = replace(answer, status=200, body=json.dumps(listing.wire(other)).encode())
    return answer.with_header("Idempotency-Key", other["_key"]).with_header(
        "Request-Id", ids.request()
    )


def _mismatched(parameter: str, *others: str) -> Callable[[Params, Answer, Exchange], Answer]:
    """Bend the first of these fields that is in the answer."""

    def change(params: Params, answer: Answer, exchange: Exchange) -> Answer:
        body = json.loads(answer.body)
        name = next((name for name in (parameter, *others) if name in body), None)
        if name is None:
            return answer  # an error answer has nothing to bend
        told = params[parameter] if params[parameter] is not None else _another(name, body)
        return replace(answer, body=json.dumps(body | {name: told}).encode())

    return change


def _another(name: str, effect: dict[str, Any]) -> Any:
    match name:
        case "amount":
            return effect["amount"] + 1
        case "currency":
            return "eur" if effect["currency"] != "eur" else "usd"
        case "metadata":
            return {}
        case "payment_intent":
            return ids.new("pi", ids.infix())
        case "customer":
            return ids.new("cus")
        case _:
            return "unheard_of"


FAULTS: dict[str, FaultKind] = {
    # Switches: they act at once, on the whole listening socket, for `seconds`.
    "refuse-connection": FaultKind(
        "switch",
        "no",
        "the listening socket is closed for `seconds` (ECONNREFUSED), open connections are reset",
        params={"seconds": 1.0},
    ),
    "connect-timeout": FaultKind(
        "switch",
        "no",
        "for `seconds` nothing is accepted and the backlog is kept full, so that a SYN gets no "
        "answer (Linux); open connections are reset",
        params={"seconds": 5.0},
    ),
    # Before anything was looked at.
    "reset-before-execution": FaultKind(
        "arrival", "no", "the request is read, then RST", arrive=_drop("reset")
    ),
    "close-before-execution": FaultKind(
        "arrival", "no", "the request is read, then FIN without a byte", arrive=_drop("close")
    ),
    "hang-before-execution": FaultKind(
        "arrival",
        "no",
        "no byte for `seconds` or until the client goes, then FIN",
        params={"seconds": 120.0},
        arrive=_drop("hang"),
    ),
    "slow": FaultKind(
        "arrival",
        "as usual",
        "nothing for `seconds`, then all as usual, also when the client has gone",
        params={"seconds": 1.0},
        arrive=_sleep,
    ),
    "html-502": FaultKind(
        "arrival", "no", "502 with an HTML page, as a proxy makes it", arrive=_html(502)
    ),
    "redirect-307": FaultKind(
        "arrival",
        "no",
        "307 to `location` (default: the same URL)",
        params={"location": None},
        arrive=_redirect,
    ),
    "list-unreadable": FaultKind(
        "arrival", "no", "500 with an api_error for a list", match=LIST_REFUNDS, arrive=_api_error
    ),
    # Refused on the way in; no idempotency key remembers these.
    "unauthorized-401": FaultKind(
        "auth",
        "no",
        "401 invalid API key",
        error=lambda params, exchange: errors.bad_key(exchange.api_key or ""),
    ),
    "forbidden-403": FaultKind(
        "auth",
        "no",
        "403 missing permission",
        error=lambda params, exchange: errors.forbidden(),
    ),
    "rate-limit-429": FaultKind(
        "limiter",
        "no",
        "429 `rate_limit`; `should_retry` true/false adds Stripe-Should-Retry",
        params={"should_retry": None, "with_code": True},
        error=lambda params, exchange: errors.rate_limited(with_code=params["with_code"]),
    ),
    "error-409-in-flight": FaultKind(
        "key",
        "no",
        "409 `idempotency_key_in_use`, although nothing is in flight",
        params={"should_retry": None},
        error=lambda params, exchange: errors.key_in_use(exchange.idempotency_key or ""),
    ),
    # Refused while executing; all but lock_timeout are remembered under the key.
    "lock-timeout-429": FaultKind(
        "execution",
        "no",
        "429 `lock_timeout` (not remembered); `should_retry` as above",
        params={"should_retry": None},
        error=lambda params, exchange: errors.lock_timeout(),
    ),
    "insufficient-balance-400": FaultKind(
        "execution",
        "no",
        "400 `message_code: insufficient_balance_for_refund`",
        error=lambda params, exchange: errors.insufficient_balance(
            stored=exchange.world.settings.cache_insufficient_balance
        ),
    ),
    "disputed-400": FaultKind(
        "execution",
        "no",
        "400 `charge_disputed`",
        error=lambda params, exchange: errors.charged_back(exchange.charge_id()),
    ),
    "already-refunded-400": FaultKind(
        "execution",
        "no",
        "400 `charge_already_refunded`; comes by itself too, when it is true",
        error=lambda params, exchange: errors.already_refunded(exchange.charge_id()),
    ),
    "not-found-404": FaultKind(
        "execution",
        "no",
        "404 `resource_missing` for the payment, or customer",
        error=lambda params, exchange: errors.missing(
            *exchange.target(),
            stored=exchange.world.settings.cache_resource_missing,
        ),
    ),
    "error-424": FaultKind(
        "execution",
        "no",
        "424 external dependency failed; `executed: true` makes the refund first",
        params={"executed": False, "should_retry": None},
        error=lambda params, exchange: errors.external_dependency(),
    ),
    "error-500-not-executed": FaultKind(
        "execution",
        "no",
        "500 api_error, remembered under the key",
        params={"should_retry": None},
        error=lambda params, exchange: errors.internal(),
    ),
    "error-500-executed": FaultKind(
        "execution",
        "yes",
        "500 api_error, remembered under the key, though the refund exists; `events: false` keeps "
        "its events back",
        params={"should_retry": None, "events": True},
        error=lambda params, exchange: errors.internal(),
        execute_first=True,
    ),
    "executed-late": FaultKind(
        "execution",
        "late",
        "no byte for `hang_seconds`, then RST; the refund is made `seconds` after that, on the "
        "sandbox clock. Until then its key is in flight (409) and no list shows it",
        params={"seconds": 2.0, "hang_seconds": 0.0},
    ),
    "list-lags": FaultKind(
        "execution",
        "no",
        "lists leave out refunds younger than `seconds`",
        match=LIST_REFUNDS,
        params={"seconds": 5.0},
    ),
    # The work is done as usual (or replayed, or refused); only the answer suffers.
    "reset-after-execution": FaultKind(
        "answer", "yes", "RST instead of the answer", change=_deliver("reset")
    ),
    "close-after-execution": FaultKind(
        "answer", "yes", "FIN instead of the answer", change=_deliver("close")
    ),
    "hang-after-execution": FaultKind(
        "answer",
        "yes",
        "no byte for `seconds` or until the client goes, then FIN",
        params={"seconds": 120.0},
        change=_deliver("hang"),
    ),
    "drip": FaultKind(
        "answer",
        "yes",
        "the answer, `chunk_bytes` at a time, one chunk every `interval_seconds`",
        params={"chunk_bytes": 1, "interval_seconds": 0.2},
        change=_deliver("drip"),
    ),
    "truncated-content-length": FaultKind(
        "answer",
        "yes",
        "full Content-Length, half the body, FIN",
        change=_deliver("truncated-content-length"),
    ),
    "truncated-chunked": FaultKind(
        "answer",
        "yes",
        "chunked, half of the only chunk, FIN",
        change=_deliver("truncated-chunked"),
    ),
    "truncated-close-delimited-200": FaultKind(
        "answer",
        "yes",
        "no Content-Length, half the body, FIN: looks complete",
        change=_deliver("truncated-close-delimited"),
    ),
    "html-200": FaultKind("answer", "yes", "200 with an HTML page", change=_html_instead(200)),
    "html-502-executed": FaultKind(
        "answer", "yes", "502 with an HTML page, though executed", change=_html_instead(502)
    ),
    "empty-500": FaultKind("answer", "yes", "500 with no body", change=_empty),
    "json-without-error": FaultKind(
        "answer",
        "yes",
        "`status` (default 500) with JSON that has no `error`",
        params={"status": 500},
        change=_json_without_error,
    ),
    "swapped-response": FaultKind(
        "answer",
        "yes",
        "200 with the answer of another refund, or credit, its key echo included",
        change=_swapped,
    ),
    "mismatched-amount": FaultKind(
        "answer",
        "yes",
        "the answer says another amount (`amount`, default one more)",
        params={"amount": None},
        change=_mismatched("amount"),
    ),
    "mismatched-currency": FaultKind(
        "answer",
        "yes",
        "the answer says another currency (`currency`)",
        params={"currency": None},
        change=_mismatched("currency"),
    ),
    "mismatched-metadata": FaultKind(
        "answer",
        "yes",
        "the answer says other metadata (`metadata`, default none)",
        params={"metadata": None},
        change=_mismatched("metadata"),
    ),
    "mismatched-payment": FaultKind(
        "answer",
        "yes",
        "the answer names another payment, or customer (`payment_intent`)",
        params={"payment_intent": None},
        change=_mismatched("payment_intent", "customer"),
    ),
    "unknown-status": FaultKind(
        "answer",
        "yes",
        "the answer says a refund status nobody knows (`status`)",
        params={"status": None},
        change=_mismatched("status"),
    ),
}


@dataclass(slots=True)
class Rule:
    """One line of the script. `times` None: until it is cleared."""

    id: int
    name: str
    match: Match
    times: int | None
    skip: int
    params: Params
    seen: int = 0
    fired: int = 0

    @property
    def kind(self) -> FaultKind:
        return FAULTS[self.name]

    @property
    def spent(self) -> bool:
        return self.times is not None and self.fired >= self.times

    @property
    def execute_first(self) -> bool:
        return self.kind.execute_first or bool(self.params.get("executed"))

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "fault": self.name,
            "match": self.match,
            "times": self.times,
            "skip": self.skip,
            "params": self.params,
            "seen": self.seen,
            "fired": self.fired,
        }


class FaultScript:
    """The rules in the order they were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._count = itertools.count(1)

    def add(
        self,
        name: str,
        *,
        match: Match | None = None,
        times: int | None = 1,
        skip: int = 0,
        params: Params | None = None,
    ) -> Rule:
        """Raises ValueError for a fault, a match field or a parameter that does not exist."""
        kind = FAULTS.get(name)
        if kind is None:
            raise ValueError(f"There is no fault {name!r}. Nothing was added. See FAULTS.")
        for given in match or {}:
            if given not in MATCH_FIELDS:
                raise ValueError(
                    f"A match has no field {given!r}; it has {', '.join(MATCH_FIELDS)}. Nothing "
                    "was added."
                )
        for given in params or {}:
            if given not in kind.params:
                raise ValueError(
                    f"Fault {name} has no parameter {given!r}; it has "
                    f"{', '.join(kind.params) or 'none'}. Nothing was added."
                )
        rule = Rule(
            id=next(self._count),
            name=name,
            match=dict(kind.match if match is None else match),
            times=times,
            skip=skip,
            params=kind.params | (params or {}),
        )
        with self._lock:
            self._rules.append(rule)
        return rule

    def take(self, stage: Stage, exchange: Exchange) -> Rule | None:
        """The rule that fires now, counted; None for the usual case."""
        if not self._rules:
            return None
        with self._lock:
            for rule in self._rules:
                if rule.kind.stage != stage or rule.spent:
                    continue
                if not _matches(rule.match, exchange):
                    continue
                rule.seen += 1
                if rule.seen <= rule.skip:
                    continue
                rule.fired += 1
                exchange.fired.append(rule.name)
                return rule
        return None

    def rules(self) -> list[dict[str, Any]]:
        with self._lock:
            return [rule.as_dict() for rule in self._rules]

    def clear(self, id: int | None = None) -> None:
        with self._lock:
            self._rules = [rule for rule in self._rules if id is not None and rule.id != id]


def _matches(match: Match, exchange: Exchange) -> bool:
    for name, wanted in match.items():
        if name == "method":
            fits = exchange.request.method == wanted.upper()
        elif name == "path":
            fits = _same(exchange.request.path, wanted)
        elif name == "idempotency_key":
            fits = _same(exchange.idempotency_key or "", wanted)
        elif name == "account":
            fits = exchange.account is not None and exchange.account.id == wanted
        else:
            sent = exchange.params if name == "params" else exchange.params.get("metadata", {})
            fits = isinstance(sent, dict) and all(
                sent.get(key) == value for key, value in wanted.items()
            )
        if not fits:
            return False
    return True


def _same(given: str, wanted: str) -> bool:
    """Equal, or for a text that ends in `*`, starting the same."""
    return given.startswith(wanted[:-1]) if wanted.endswith("*") else given == wanted
