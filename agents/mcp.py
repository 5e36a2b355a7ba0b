"""MCP at /mcp: the tools of a model, under a session's token. Contract: docs/mcp.md.

A thin adapter over `agents/calls.py`; django-mcpz speaks the protocol (decision 0025). No tool
takes an id, and none calls a provider: a proposal is one short transaction, and a worker acts after
it. The view is synchronous, so that it ends although its caller hung up.

Two kinds of answers. `isError` means that nothing was done and names the argument at fault: models
take it for an invitation to call again with another one. Everything else is an ordinary result,
also that the outcome is not known, and says "never" to calling again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast

import msgspec
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import UnreadablePostError
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from django_mcpz.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    error_response,
    result_response,
)
from django_mcpz.schemas import type_schema
from django_mcpz.server import MCPServer, ToolError

from agents import calls
from agents.answers import NEXT, POLL_AFTER_SECONDS, ActionAnswer
from agents.bearer import find_caller
from agents.callers import Caller
from agents.models import SecurityEvent
from agents.problems import Kind, ProblemFound
from agents.rates import seconds_to_wait
from agents.request_id import request_id
from agents.security import address_of, record
from agents.sessions import action_id_of
from agents.strict_json import BODY_BYTES_MAX, require_json, require_whole_body
from effects.states import FINAL_STATES, State
from kernel.errors import InvalidInput
from kernel.identity import IDENTIFIER_PATTERN
from kernel.money import AMOUNT_MINOR_MAX, format_amount
from kernel.strict_json import Malformed, NotStrict, Wrong, read_object, shown_name
from kernel.text import is_text
from refunds.models import RefundAction
from refunds.propose import (
    NOTE_CHARACTERS_MAX,
    Conflict,
    OfAnotherAgent,
    Recorded,
    Replayed,
)
from refunds.withdraw import TooLate

log = logging.getLogger(__name__)

# A database that is away is usually back, or failed over, within seconds.
UNANSWERED_POLL_AFTER_SECONDS = 5
# By then a proposal whose answer was lost has arrived, or has given up its wait for the order's
# lock (config/settings.py), nearly always.
NONE_POLL_AFTER_SECONDS = 5

# ---- What a model may say, and what it is told ---------------------------------------------------


class Refund(msgspec.Struct, kw_only=True):
    """What `propose_refund` takes."""

    amount_minor: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=AMOUNT_MINOR_MAX,
            description="How much, as an integer in minor units of the order's currency: 7900 is "
            "79.00 USD, but 7900 JPY in a currency without decimals.",
        ),
    ]
    reason: Annotated[
        str,
        msgspec.Meta(
            pattern=f"^{IDENTIFIER_PATTERN}$",
            description="Why: one of the `reasons` of get_refundable, exactly as it is written "
            "there. Any other is refused, and nothing is recorded then.",
        ),
    ]
    note: Annotated[
        str,
        msgspec.Meta(
            max_length=NOTE_CHARACTERS_MAX,
            description="Anything that the people who review it should read. It changes no "
            "decision.",
        ),
    ] = ""


class Nothing(msgspec.Struct):
    """What the other tools take."""


Next = Annotated[
    str, msgspec.Meta(description="What to do now, and what to tell the customer. Follow it.")
]
Poll = Annotated[
    int | None,
    msgspec.Meta(description="How soon reading again can show something new; null: it cannot."),
]
Final = Annotated[bool, msgspec.Meta(description="Whether this will not change any more.")]
Never = Annotated[
    Literal["never"], msgspec.Meta(description="Always this: no call needs a second one.")
]


class RefundResult(msgspec.Struct, kw_only=True):
    """Where the one refund of this conversation stands."""

    outcome: Annotated[
        Literal[
            "none",
            "recorded",
            "replayed",
            "conflict",
            "found",
            "withdrawn",
            "too_late",
            "unanswered",
        ],
        msgspec.Meta(
            description="none: nothing is recorded now. recorded: a new proposal. replayed: the "
            "same was proposed before, and this is it. conflict: it was proposed before, with "
            "another amount or reason or by another agent; nothing was changed. found: this is it. "
            "withdrawn: taken back. "
            "too_late: it cannot be taken back any more. unanswered: it is not known right now."
        ),
    ]
    action_id: str | None
    state: Literal[tuple(State.values)] | None  # type: ignore[valid-type]
    amount_minor: Annotated[
        int | None, msgspec.Meta(description="In minor units of `currency`: 7900 is 79.00 USD.")
    ]
    currency: str | None
    amount: Annotated[str | None, msgspec.Meta(description="For people, like 79.00 USD.")]
    final: Final
    retry: Never = "never"
    next: Next
    poll_after_seconds: Poll


class RefundableResult(msgspec.Struct, kw_only=True):
    """What may still be refunded of this conversation's order."""

    outcome: Annotated[
        Literal["found", "unanswered"],
        msgspec.Meta(description="unanswered: it is not known right now."),
    ]
    currency: str | None
    refundable_minor: Annotated[
        int | None,
        msgspec.Meta(description="What the order has left, in minor units: 7900 is 79.00 USD."),
    ]
    refundable: Annotated[str | None, msgspec.Meta(description="For people, like 120.00 USD.")]
    max_amount_minor: Annotated[
        int | None,
        msgspec.Meta(description="The most that may be proposed here; null: what the order has."),
    ]
    reasons: Annotated[
        list[str] | None,
        msgspec.Meta(
            description="What propose_refund takes as its reason; null: any code of 1 to 64 "
            "characters of A-Z a-z 0-9 _ . -"
        ),
    ]
    final: Final
    retry: Never = "never"
    next: Next
    poll_after_seconds: Poll


INSTRUCTIONS = (
    "These tools are about one refund of one order, both chosen by the merchant's own systems. "
    "Read get_refundable, propose it once with propose_refund and one of its `reasons`, and follow "
    "the `next` of every answer. A proposal is recorded and decided by the merchant's rules and "
    "people; the money is sent by itself afterwards. The same proposal made twice is one refund, "
    "and there is no second one in this conversation. refund_status tells where it stands."
)
# A proposal whose answer was lost may still be on the network, or wait here for its turn.
NEXT_OF_NONE = (
    "Nothing is recorded in this conversation so far. If nothing was proposed yet, propose_refund "
    "proposes it. If a proposal was made and its answer never came, read this once more in some "
    "seconds: it can still arrive. Proposing the same again gives the same refund."
)
NEXT_OF_NONE_TO_WITHDRAW = (
    "There is nothing to withdraw now, and nothing was withdrawn. If a proposal was made and its "
    "answer never came, it can still arrive and be recorded: read refund_status in some seconds, "
    "withdraw it then, and do not tell the customer before that it was taken back."
)
NEXT_OF_CONFLICT = (
    "This conversation's refund was proposed before, with another {differing}. Nothing was changed "
    "or sent by this call; whatever else is wanted needs a person. Of the one that is there: "
)
# What the fields of a proposal are called to a model.
FIELD_NAMES = {"amount_minor": "amount", "currency": "currency", "reason": "reason"}
NEXT_OF_ANOTHER_AGENT = (
    "This refund was proposed by another agent of the merchant. Nothing was changed or sent by "
    "this call. Hand over to a person, and tell the customer that it is being looked at."
)
NEXT_OF_TOO_LATE = "It cannot be withdrawn any more, and nothing was changed by this call. "
NEXT_OF_REFUNDABLE = (
    "Propose the refund once with propose_refund, and give the one of `reasons` that fits. If that "
    "was done already, read refund_status."
)
NEXT_OF_NOTHING_REFUNDABLE = (
    "Nothing is left to refund of this order. If a refund was proposed already, refund_status "
    "tells where it stands; otherwise hand over to a person."
)
NEXT_OF_UNANSWERED_CHANGE = (
    "Whether it was recorded is not known right now. Nothing is refunded twice by it. Read "
    "refund_status later, and tell the customer that it is being looked at."
)
NEXT_OF_UNANSWERED_READ = (
    "It cannot be read right now, and nothing was changed by this call. Read it later, and tell "
    "the customer that it is being looked at."
)


def _result(
    *, outcome: str, action: RefundAction | ActionAnswer, before_next: str = ""
) -> RefundResult:
    state = State(action.state)
    return RefundResult(
        outcome=cast(Any, outcome),
        action_id=action.action_id,
        state=state.value,
        amount_minor=action.amount_minor,
        currency=action.currency,
        amount=format_amount(action.amount_minor, action.currency),
        final=state in FINAL_STATES,
        next=before_next + NEXT[state],
        poll_after_seconds=POLL_AFTER_SECONDS.get(state),
    )


def _no_action(
    *, outcome: str, told: str, final: bool = False, poll: int | None = None
) -> RefundResult:
    return RefundResult(
        outcome=cast(Any, outcome),
        action_id=None,
        state=None,
        amount_minor=None,
        currency=None,
        amount=None,
        final=final,
        next=told,
        poll_after_seconds=poll,
    )


def _none(told: str) -> RefundResult:
    return _no_action(outcome="none", told=told, poll=NONE_POLL_AFTER_SECONDS)


def _of_another_agent() -> RefundResult:
    return _no_action(outcome="conflict", told=NEXT_OF_ANOTHER_AGENT, final=True)


def _conflict(conflict: Conflict) -> RefundResult:
    differing = " and another ".join(FIELD_NAMES[name] for name in conflict.differing)
    return _result(
        outcome="conflict",
        action=conflict.action,
        before_next=NEXT_OF_CONFLICT.format(differing=differing),
    )


def _unanswered_change() -> RefundResult:
    return _no_action(
        outcome="unanswered", told=NEXT_OF_UNANSWERED_CHANGE, poll=UNANSWERED_POLL_AFTER_SECONDS
    )


def _unanswered_read() -> RefundResult:
    return _no_action(
        outcome="unanswered", told=NEXT_OF_UNANSWERED_READ, poll=UNANSWERED_POLL_AFTER_SECONDS
    )


def _unanswered_refundable() -> RefundableResult:
    return RefundableResult(
        outcome="unanswered",
        currency=None,
        refundable_minor=None,
        refundable=None,
        max_amount_minor=None,
        reasons=None,
        final=False,
        next=NEXT_OF_UNANSWERED_READ,
        poll_after_seconds=UNANSWERED_POLL_AFTER_SECONDS,
    )


# ---- Before a tool: who calls, and is the body what it seems -------------------------------------


def _admit(request: HttpRequest) -> HttpResponse | None:
    """Answers what refuses the request, or None to let it on, with its caller in `request.auth`.

    With the database away a token proves nothing, and nothing can be done with it either: such a
    call goes on without a caller, so that a model hears that the outcome is not known, and not of a
    broken tool.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    caller: Caller | None = None
    try:
        caller = find_caller(token.strip(), request=request) if scheme.lower() == "bearer" else None
        is_known = True
    except (OperationalError, InterfaceError):
        log.exception(
            "The database could not be used.", extra={"action": "mcp.database_unavailable"}
        )
        is_known = False
    if is_known and caller is None:
        return _unauthorized(request)
    wait = None if caller is None else seconds_to_wait(caller)
    if wait is not None:
        response = _protocol_error(
            Kind.RATE_LIMITED,
            "This request was not looked at; what was recorded before stands as it is, and "
            f"refund_status tells it after {wait} s.",
        )
        response["Retry-After"] = str(wait)
        return response
    if caller is not None and caller.session is None:
        record(kind=SecurityEvent.Kind.NOT_FOR_THIS, caller=caller, address=address_of(request))
        return _protocol_error(
            Kind.FORBIDDEN,
            "MCP takes a session's token, not an agent key. The merchant's backend opens a "
            "session with POST /api/v1/sessions. Nothing was done.",
        )
    # Nothing here is for a person who is signed in to the staff site in the same browser.
    request.user = AnonymousUser()
    request.auth = caller  # type: ignore[attr-defined]
    return _refuse_body(request)


def _unauthorized(request: HttpRequest) -> HttpResponse:
    response = _protocol_error(
        Kind.UNAUTHORIZED,
        "This session is over, or there was never one with this token. Send `Authorization: "
        "Bearer` and the token of another one, which the merchant's backend opens; there is "
        "nowhere to sign in. Nothing was done.",
    )
    metadata = request.build_absolute_uri(reverse("mcp_resource"))
    # https://www.rfc-editor.org/rfc/rfc9728#section-5.1
    response["WWW-Authenticate"] = f'Bearer resource_metadata="{metadata}"'
    return response


def _refuse_body(request: HttpRequest) -> HttpResponse | None:
    """Answers a body that is not whole, not small, or could be read in two ways.

    django-mcpz reads the body again, and takes the last of two equal names. Beside the arguments,
    clients may send whatever JSON allows: `_meta`, capabilities, their own name.
    """
    try:
        require_json(request)
        require_whole_body(request)
        if len(request.body) > BODY_BYTES_MAX:
            raise RequestDataTooBig
        read_object(request.body)
    except ProblemFound as error:
        return _protocol_error(error.kind, error.detail)
    except RequestDataTooBig:
        return _protocol_error(
            Kind.BODY_TOO_LARGE,
            f"The body is larger than {BODY_BYTES_MAX} bytes. Nothing was done.",
        )
    except UnreadablePostError:
        return _protocol_error(
            Kind.MALFORMED_JSON, "The body ended before it was complete. Nothing was done."
        )
    except Malformed as error:
        return _protocol_error(Kind.MALFORMED_JSON, f"The body {error.reason}. Nothing was done.")
    except NotStrict as error:
        wrongs = [wrong for wrong in error.wrongs if not _may_hold_anything(wrong.path)]
        return _refuse_wrongs(error.found, wrongs) if wrongs else None
    return None


def _may_hold_anything(path: str) -> bool:
    """Whether a path is a parameter that no tool ever reads, or below one."""
    parts = re.split(r"[.\[]", path, maxsplit=2)
    return len(parts) > 1 and parts[0] == "params" and parts[1] not in ("arguments", "name")


def _refuse_wrongs(message: dict[str, Any], wrongs: list[Wrong]) -> HttpResponse:
    """A result that names the arguments where only arguments are wrong: a model wrote these."""
    prefix = "params.arguments."
    id_ = message.get("id")
    is_id = type(id_) is int or (isinstance(id_, str) and is_text(id_))
    is_call = is_id and message.get("method") == "tools/call"
    if is_call and all(wrong.path.startswith(prefix) for wrong in wrongs):
        told = _nothing_was_done(_in_words(wrongs).replace(prefix, ""))
        content = [{"type": "text", "text": told}]
        return result_response(
            cast(Any, id_), {"resultType": "complete", "content": content, "isError": True}
        )
    return _protocol_error(Kind.INVALID_FIELD, f"{_in_words(wrongs)}. Nothing was done.")


def _in_words(wrongs: list[Wrong]) -> str:
    return "; ".join(f"{wrong.path or 'body'} {wrong.reason}" for wrong in wrongs[:3])


def _nothing_was_done(what: str) -> str:
    return f"{what}; nothing was done."


# Of JSON-RPC; every other kind is an invalid request. https://www.jsonrpc.org/specification
CODES = {
    Kind.MALFORMED_JSON: PARSE_ERROR,
    Kind.INVALID_FIELD: INVALID_PARAMS,
    Kind.INTERNAL: -32603,
}


def _protocol_error(kind: Kind, told: str) -> HttpResponse:
    """A request that no tool was called for, as clients of MCP show it; `data` is for programs."""
    # Streamable HTTP says 400 of what it cannot accept.
    status = HTTPStatus.BAD_REQUEST if kind is Kind.INVALID_FIELD else HTTPStatus(kind.status)
    code = CODES.get(kind, INVALID_REQUEST)
    return error_response(None, code, told, data={"type": kind.uri}, status=status)


# ---- The tools -----------------------------------------------------------------------------------

SERVER = MCPServer(
    name="refund-once",
    version="2",
    title="Refund Once",
    instructions=INSTRUCTIONS,
    auth=_admit,
)

Tool = Callable[[Caller, dict[str, Any]], msgspec.Struct]
SCHEMA_MEMBERS = ("type", "properties", "required")


def _tool(
    *,
    takes: type[msgspec.Struct],
    answers: type[msgspec.Struct],
    unanswered: Callable[[], msgspec.Struct],
    **about: Any,
) -> Callable[[Tool], Tool]:
    """Make a function a tool: its arguments are known and there, and whatever it raises is told.

    An InvalidInput that names an argument is an error result. Every other exception is
    `unanswered`: what it left behind is not known here, and no text of it leaves.
    """
    fields = {field.name: field for field in msgspec.structs.fields(takes)}
    schema = {
        # Without the name and the docstring of the class: models read this.
        **{name: value for name, value in type_schema(takes).items() if name in SCHEMA_MEMBERS},
        "additionalProperties": False,
    }

    def decorate(function: Tool) -> Tool:
        @wraps(function)
        def tool(request: HttpRequest, arguments: dict[str, Any]) -> msgspec.Struct:
            # Many models write null for what they leave out.
            given = {
                name: value
                for name, value in arguments.items()
                if value is not None or name not in fields or fields[name].required
            }
            for name in given:
                if name not in fields:
                    raise ToolError(_nothing_was_done(f"{shown_name(name)} is not an argument"))
            for name, field in fields.items():
                if field.required and name not in given:
                    raise ToolError(_nothing_was_done(f"{name} is required"))
            caller: Caller | None = getattr(request, "auth", None)
            if caller is None:
                return unanswered()
            try:
                return function(caller, given)
            except InvalidInput as error:
                if error.field in fields:
                    told = _nothing_was_done(f"{error.field} {error.reason}")
                    raise ToolError(told) from None
                _log_exception(function.__name__)
            except Exception:
                _log_exception(function.__name__)
            return unanswered()

        SERVER.tool(name=function.__name__, input_schema=schema, output_schema=answers, **about)(
            tool
        )
        return function

    return decorate


def _log_exception(tool: str) -> None:
    log.exception("A tool could not answer.", extra={"action": "mcp.unanswered", "tool": tool})


@_tool(
    takes=Nothing,
    answers=RefundableResult,
    unanswered=_unanswered_refundable,
    title="What may be refunded",
    description="What may still be refunded of this conversation's order, in which currency, and "
    "for which reasons. Amounts are integers in minor units: 7900 is 79.00 USD. It changes "
    "nothing.",
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
)
def get_refundable(caller: Caller, given: dict[str, Any]) -> RefundableResult:
    """One query: the order was read with the session, and which policy is in force was not."""
    session = _session(caller)
    order = session.order
    # An observed fact may have overdrawn the order; nothing is left then.
    left = max(0, order.refundable_minor)
    return RefundableResult(
        outcome="found",
        currency=order.currency,
        refundable_minor=left,
        refundable=format_amount(left, order.currency),
        max_amount_minor=session.max_amount_minor,
        reasons=calls.reasons_of(caller),
        final=False,
        next=NEXT_OF_REFUNDABLE if left else NEXT_OF_NOTHING_REFUNDABLE,
        poll_after_seconds=None,
    )


@_tool(
    takes=Refund,
    answers=RefundResult,
    unanswered=_unanswered_change,
    title="Propose the refund",
    description="Propose the one refund of this conversation, in the order's currency and for one "
    "of the `reasons` of get_refundable. It is "
    "recorded, and decided by the merchant's rules and people; the money is sent by itself "
    "afterwards. Proposing the same again gives the same refund and never a second one. Follow "
    "`next` of the answer.",
    read_only=False,
    destructive=True,
    idempotent=True,
    open_world=True,
)
def propose_refund(caller: Caller, given: dict[str, Any]) -> RefundResult:
    """One short transaction. The provider is called by a worker, after it."""
    session = _session(caller)
    note = given.get("note", "")
    if not isinstance(note, str):
        raise InvalidInput(field="note", reason="must be a string")
    proposed = calls.propose(
        caller=caller,
        order_id=session.order.order_id,
        request_id_of_merchant=session.request_id,
        amount_minor=given["amount_minor"],
        currency=session.order.currency,
        reason=given["reason"],
        note=note,
    )
    if isinstance(proposed, OfAnotherAgent):
        record(
            kind=SecurityEvent.Kind.OF_ANOTHER_AGENT,
            caller=caller,
            address="POST /mcp propose_refund",
        )
        return _told(_of_another_agent())
    if isinstance(proposed, Conflict):
        return _told(_conflict(proposed))
    if isinstance(proposed, Recorded):
        return _told(_result(outcome="recorded", action=proposed.action))
    if isinstance(proposed, Replayed):
        return _told(_result(outcome="replayed", action=proposed.action))
    raise TypeError(type(proposed))  # a session's order is never unknown, and no belief was stated


@_tool(
    takes=Nothing,
    answers=RefundResult,
    unanswered=_unanswered_read,
    title="Where the refund stands",
    description="Where the one refund of this conversation stands, also when the answer of "
    "propose_refund never arrived. It changes nothing.",
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
)
def refund_status(caller: Caller, given: dict[str, Any]) -> RefundResult:
    """One query, and a second one when that finds nothing of this agent's."""
    action_id = action_id_of(_session(caller))
    answer = calls.read(caller=caller, action_id=action_id)
    if answer is None:
        proposer = calls.proposer_of(action_id)
        # Its own, if it was recorded just now, is told by the next read.
        is_foreign = proposer not in (None, caller.key.prefix)
        return _of_another_agent() if is_foreign else _none(NEXT_OF_NONE)
    return _result(outcome="found", action=answer)


@_tool(
    takes=Nothing,
    answers=RefundResult,
    unanswered=_unanswered_change,
    title="Withdraw the refund",
    description="Take this conversation's refund back before anything was sent. Only when the "
    "customer does not want it any more: a withdrawn refund stays withdrawn.",
    read_only=False,
    destructive=True,
    idempotent=True,
    open_world=False,
)
def withdraw_refund(caller: Caller, given: dict[str, Any]) -> RefundResult:
    """One short transaction; before it says that there is nothing, it waits for the order's."""
    withdrawn = calls.withdraw(caller=caller, action_id=action_id_of(_session(caller)))
    if withdrawn is None:
        return _told(_none(NEXT_OF_NONE_TO_WITHDRAW))
    if isinstance(withdrawn, OfAnotherAgent):
        return _told(_of_another_agent())
    if isinstance(withdrawn, TooLate):
        return _told(
            _result(outcome="too_late", action=withdrawn.action, before_next=NEXT_OF_TOO_LATE)
        )
    return _told(_result(outcome="withdrawn", action=withdrawn.action))


def _session(caller: Caller) -> Any:
    if caller.session is None:
        raise TypeError("a tool is called under a session")
    return caller.session


def _told(result: RefundResult) -> RefundResult:
    log.info(
        "MCP: %s",
        result.outcome,
        extra={
            "action": f"mcp.{result.outcome}",
            "action_id": result.action_id,
            "state": result.state,
        },
    )
    return result


# ---- What django-mcpz refuses by itself ----------------------------------------------------------

KINDS = {
    PARSE_ERROR: Kind.MALFORMED_JSON,
    METHOD_NOT_FOUND: Kind.NOT_FOUND,
    INVALID_PARAMS: Kind.INVALID_FIELD,
}
# Its texts of these two are its parser's.
PARSER_TOLD = {
    PARSE_ERROR: "The body holds what JSON cannot say, like half a character or a number that is "
    "too large",
    INVALID_REQUEST: "The body must be one message of JSON-RPC 2.0: jsonrpc, method, an id that is "
    "a string or an integer, and params that are an object",
}


def _in_our_words(response: HttpResponse) -> HttpResponse:
    """The same refusal with a type for programs, and the sentence that nothing was done.

    Its code and its own `data` stay: clients choose their protocol by them.
    """
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refused = _protocol_error(
            Kind.METHOD_NOT_ALLOWED,
            "There is no stream to open and no session to end here: POST is all that this address "
            "takes. Nothing was done.",
        )
        refused["Allow"] = response["Allow"]
        return refused
    answer = json.loads(response.content) if response.content else {}
    error = answer.get("error")
    if error is None or "type" in error.get("data", {}):
        return response
    code = error["code"]
    is_origin = response.status_code == HTTPStatus.FORBIDDEN
    told = error["message"] if is_origin else PARSER_TOLD.get(code, error["message"])
    kind = Kind.FORBIDDEN if is_origin else KINDS.get(code, Kind.INVALID_FIELD)
    return error_response(
        answer["id"],
        code,
        f"{told}. Nothing was done.",
        data={"type": kind.uri, **error.get("data", {})},
        status=HTTPStatus(response.status_code),
    )


# ---- The addresses -------------------------------------------------------------------------------


@csrf_exempt
def mcp(request: HttpRequest) -> HttpResponse:
    """The MCP endpoint. Whatever is not an answer of the server still says nothing internal."""
    try:
        response = _in_our_words(SERVER(request))
    except RecursionError:
        response = _protocol_error(
            Kind.MALFORMED_JSON, "The body is nested too deeply. Nothing was done."
        )
    except Exception:
        log.exception("A request ended in a mistake.", extra={"action": "mcp.mistake"})
        response = _protocol_error(Kind.INTERNAL, NEXT_OF_UNANSWERED_CHANGE)
    response["X-Request-ID"] = request_id()
    response["Cache-Control"] = "no-store"
    return response


@require_safe
def mcp_resource(request: HttpRequest) -> HttpResponse:
    """What /mcp is, for whoever was told 401 there. https://www.rfc-editor.org/rfc/rfc9728

    No authorization server: a session's token is given by the merchant's backend.
    """
    return JsonResponse(
        {
            "resource": request.build_absolute_uri(reverse("mcp")),
            "bearer_methods_supported": ["header"],
            "resource_name": "Refund Once",
            "resource_documentation": request.build_absolute_uri("/api/v1/docs"),
        },
        headers={"X-Request-ID": request_id(), "Cache-Control": "no-store"},
    )
