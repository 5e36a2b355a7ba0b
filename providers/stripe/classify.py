"""From an answer to an outcome, by the table in `providers.stripe.table`.

The answer is read as it came over the wire. The SDK's exceptions are not asked: they lose the
error code for 401, 403, 409, 429 and 5xx, and the headers when the body is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from effects.outcomes import (
    Evidence,
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    ProviderEffect,
    RateLimited,
    Refused,
    Succeeded,
    Unknown,
)
from kernel.errors import Bug
from providers.stripe.effect_object import NotReadable, clean_text, parse_json
from providers.stripe.payload import Payload
from providers.stripe.table import TABLE, Row
from providers.stripe.verify import what_differs
from providers.stripe.wire import Answer

BODY_EXCERPT_CHARACTERS = 2000
MESSAGE_CHARACTERS = 500


# Names of exception classes anywhere in the cause chain, in the order they are looked for.
_BEFORE_SEND = (
    ("fenced", {"Fenced"}),
    ("fence_failed", {"FenceFailed"}),
    ("deadline_before_send", {"DeadlineBeforeSend"}),
    ("name_resolution", {"NameResolutionError", "gaierror"}),
    # urllib3's NewConnectionError was a kind of ConnectTimeoutError in its first line, so it is
    # looked for before it.
    ("connection_refused", {"NewConnectionError"}),
    ("connect_timeout", {"ConnectTimeout", "ConnectTimeoutError"}),
    # Before the request is written only the handshake reads.
    ("tls_handshake", {"SSLError", "ReadTimeout"}),
)
_AFTER_SEND = (
    ("deadline", {"DeadlineCut", "DeadlineBeforeSend"}),
    ("answer_too_long", {"AnswerTooLong"}),
    ("read_timeout", {"ReadTimeout", "ReadTimeoutError"}),
    ("truncated", {"ChunkedEncodingError", "IncompleteRead", "InvalidChunkLength"}),
    ("tls", {"SSLError"}),
    ("connection_reset", {"ProtocolError", "RemoteDisconnected", "ConnectionError"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything known about one call after it ended.

    `payload` and `sent_key` are None and "" for a read. `answer` is a whole answer or None.
    """

    error: Exception | None
    answer: Answer | None
    bytes_may_have_left: bool
    was_cut: bool = False
    elapsed_ms: int | None = None
    payload: Payload | None = None
    sent_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the conditions of a row are compared with."""

    event: str = ""
    object: str = ""
    status: int | None = None
    type: str = ""
    codes: frozenset[str] = frozenset()
    param: str = ""
    message: str = ""
    replayed: bool = False


def classify(seen: Seen) -> Outcome:
    """The outcome of one request. Pure: the same call always gives the same outcome."""
    facts, effect, evidence = _read(seen)
    return _outcome(_first_row(facts), effect, evidence, seen)


def failed_read(seen: Seen) -> tuple[str, bool, Evidence]:
    """Why a read could not be used, by the same table: word, whether a person must act, evidence.

    Stripe is asked again later when it is not a person's turn.
    """
    facts, _, evidence = _read(seen)
    row = _first_row(facts)
    return row.word or "unreadable_answer", row.outcome == "Misconfigured", evidence


def evidence_of(seen: Seen) -> Evidence:
    """What came back, for people and later rounds: truncated, without secrets."""
    return _read(seen)[2]


def render_table() -> str:
    """The table as Markdown, for the documentation."""
    lines = [
        "| # | answer | recognised by | outcome | source |",
        "|---|---|---|---|---|",
    ]
    for number, row in enumerate(TABLE, start=1):
        marks = [
            row.outcome + (f"({row.word})" if row.word else ""),
            "read first" if row.read_first else "",
            "incident" if row.incident else "",
        ]
        lines.append(
            f"| {number} | {row.what} | {_conditions(row)} | "
            f"{', '.join(mark for mark in marks if mark)} | {row.source} |"
        )
    return "\n".join(lines) + "\n"


def _conditions(row: Row) -> str:
    parts = []
    if row.status is not None:
        first, last = row.status
        parts.append(str(first) if first == last else f"{first}-{last}")
    if row.event:
        parts.append("no answer: " + ", ".join(row.event))
    if row.object:
        parts.append(f"body: {row.object}")
    if row.type:
        parts.append(f"type `{row.type}`")
    if row.code:
        parts.append("code " + " or ".join(f"`{code}`" for code in row.code))
    if row.param:
        parts.append(f"param `{row.param}`")
    if row.replayed:
        parts.append("replayed")
    if row.message:
        parts.append("message `" + row.message.replace("|", "\\|") + "`")
    return "; ".join(parts) or "otherwise"


def _first_row(facts: _Facts) -> Row:
    for row in TABLE:
        if _matches(row, facts):
            return row
    raise Bug("the last row of the table matches everything")


def _matches(row: Row, facts: _Facts) -> bool:
    if row.event and facts.event not in row.event:
        return False
    if row.object and facts.object != row.object:
        return False
    if row.status is not None and not _within(facts.status, row.status):
        return False
    if row.type and facts.type != row.type:
        return False
    if row.code and not any(_code_matches(code, facts.codes) for code in row.code):
        return False
    if row.replayed and not facts.replayed:
        return False
    if row.param and facts.param != row.param:
        return False
    return not row.message or re.search(row.message, facts.message) is not None


def _within(status: int | None, limits: tuple[int, int]) -> bool:
    return status is not None and limits[0] <= status <= limits[1]


def _code_matches(wanted: str, codes: frozenset[str]) -> bool:
    if wanted.endswith("*"):
        return any(code.startswith(wanted[:-1]) for code in codes)
    return wanted in codes


def _outcome(row: Row, effect: ProviderEffect | None, evidence: Evidence, seen: Seen) -> Outcome:
    if row.outcome == "NotSent":
        return NotSent(reason=row.word, evidence=evidence)
    if row.outcome == "Unknown":
        return Unknown(reason=row.word, evidence=evidence, incident=row.incident)
    if row.outcome == "RateLimited":
        return RateLimited(evidence=evidence, retry_after_seconds=_retry_after(seen.answer))
    if row.outcome == "Misconfigured":
        return Misconfigured(reason=row.word, evidence=evidence)
    if row.outcome == "Refused":
        return Refused(code=row.word, evidence=evidence, read_first=row.read_first, effect=effect)
    if effect is None:
        raise Bug(f"row {row.what!r} needs an object of its kind")
    if row.outcome == "Succeeded":
        return Succeeded(effect=effect, evidence=evidence)
    if row.outcome == "Pending":
        return Pending(effect=effect, evidence=evidence)
    raise Bug(f"unknown outcome {row.outcome!r} in the table")


def _read(seen: Seen) -> tuple[_Facts, ProviderEffect | None, Evidence]:
    # What was cut by the watchdog is not an answer, however whole it looks.
    if seen.answer is None or seen.was_cut:
        event = _event(seen)
        evidence = Evidence(
            message=clean_text(_chain_text(seen.error), characters_max=MESSAGE_CHARACTERS),
            elapsed_ms=seen.elapsed_ms,
            extra={"causes": [type(error).__name__ for error in _chain(seen.error)][:10]},
        )
        return _Facts(event=event), None, evidence
    return _read_answer(seen, seen.answer)


def _event(seen: Seen) -> str:
    names = {cls.__name__ for error in _chain(seen.error) for cls in type(error).__mro__}
    if not seen.bytes_may_have_left:
        return next((word for word, known in _BEFORE_SEND if known & names), "before_send")
    if seen.was_cut:
        return "deadline"
    return next((word for word, known in _AFTER_SEND if known & names), "interrupted")


def _read_answer(seen: Seen, answer: Answer) -> tuple[_Facts, ProviderEffect | None, Evidence]:
    value = parse_json(answer.body)
    error = value.get("error") if isinstance(value, dict) else None
    error = error if isinstance(error, dict) else {}
    echoed_key = answer.headers.get("idempotency-key", "")
    seen_object, effect, differs, problem = "" if error else "unreadable", None, "", ""
    if 200 <= answer.status <= 299:
        seen_object, effect, differs, problem = _read_success(seen, value, echoed_key=echoed_key)
    elif seen.sent_key and echoed_key and echoed_key != seen.sent_key:
        seen_object, differs = "mismatch", "idempotency_key"

    codes = [_word(error, "code"), _word(error, "message_code")]
    message = _word(error, "message") or problem
    extra: dict[str, Any] = {"key_echo": clean_text(echoed_key, characters_max=255)}
    if differs:
        extra["differs"] = differs
    for header in ("stripe-should-retry", "original-request"):
        if header in answer.headers:
            extra[header.replace("-", "_")] = clean_text(answer.headers[header], characters_max=255)
    for field in ("type", "param", "decline_code"):
        if _word(error, field):
            extra[field] = _word(error, field)
    evidence = Evidence(
        http_status=answer.status,
        request_id=clean_text(answer.headers.get("request-id", ""), characters_max=255),
        replayed=answer.headers.get("idempotent-replayed", "").lower() == "true",
        error_code=next((code for code in codes if code), ""),
        message=message,
        body_excerpt=clean_text(
            answer.body[: 4 * BODY_EXCERPT_CHARACTERS].decode("utf-8", "replace"),
            characters_max=BODY_EXCERPT_CHARACTERS,
        ),
        elapsed_ms=seen.elapsed_ms,
        extra=extra,
    )
    facts = _Facts(
        object=seen_object,
        status=answer.status,
        type=_word(error, "type"),
        codes=frozenset(code for code in codes if code),
        param=_word(error, "param"),
        message=message,
        replayed=evidence.replayed,
    )
    return facts, effect, evidence


def _read_success(
    seen: Seen, value: Any, *, echoed_key: str
) -> tuple[str, ProviderEffect | None, str, str]:
    """What a 2xx body turned out to be, the effect in it, what differs, why it is unreadable."""
    if seen.payload is None:
        return "unreadable", None, "", ""  # of a read; its reader says what is wrong with it
    try:
        effect = seen.payload.kind.read(value)
    except NotReadable as problem:
        return "unreadable", None, "", str(problem)
    differs = what_differs(
        effect=effect, payload=seen.payload, sent_key=seen.sent_key, echoed_key=echoed_key
    )
    if differs:
        return "mismatch", effect, differs, ""
    kind = {"succeeded": "succeeded", "failed": "failed"}.get(effect.settlement, "open")
    return kind, effect, "", ""


def _word(error: dict[str, Any], field: str) -> str:
    value = error.get(field)
    return clean_text(value, characters_max=MESSAGE_CHARACTERS) if isinstance(value, str) else ""


def _retry_after(answer: Answer | None) -> float | None:
    text = answer.headers.get("retry-after", "") if answer is not None else ""
    # Only seconds; the other form, a date, would need a clock that agrees with Stripe's.
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Every exception an exception was caused by: `__cause__`, `__context__`, arguments, reason."""
    waiting, met = [error], set()
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in met:
            continue
        met.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__, getattr(current, "reason", None)]
        waiting += [argument for argument in current.args if isinstance(argument, BaseException)]


def _chain_text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else ""
