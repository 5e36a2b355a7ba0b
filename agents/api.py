"""The HTTP API: orders, sessions and refunds. Contract: docs/api.md.

Each view is one service call. No provider is called here: a proposal is one short transaction, and
a worker acts after it.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Header, NinjaAPI, Path, Query
from ninja.openapi.schema import OpenAPISchema
from pydantic import BaseModel

from agents import calls
from agents.answers import (
    ActionAnswer,
    ActionPage,
    ExplainAnswer,
    answer_of_new,
    explain_answer,
    read_answers,
    without_rules,
)
from agents.bearer import AgentBearer
from agents.callers import Caller
from agents.conditional import unless_unchanged
from agents.door import problem_of, refuse_unknown_parameters
from agents.idempotency_key import HEADER, ValueOfAnotherAction
from agents.models import Scope, SecurityEvent
from agents.openapi import complete
from agents.problems import FieldProblem, Kind, ProblemDetails, ProblemFound, problem
from agents.security import address_of, record, record_unknown_action, record_unknown_session
from agents.sessions import action_id_of, open_session, revoke_session
from agents.shapes import (
    PAGE_MAX,
    ActionId,
    Cursor,
    ExplainIn,
    IdempotencyKey,
    Identifier,
    Limit,
    OpenedSessionAnswer,
    OrderAnswer,
    OrderIn,
    ProposalIn,
    SessionAnswer,
    SessionId,
    SessionIn,
)
from agents.strict_json import StrictParser, parse_object, require_json
from kernel.errors import InvalidInput
from kernel.strict_json import shown_name
from refunds.explain import explain_refund
from refunds.models import Order, RefundAction
from refunds.orders import mirror_order
from refunds.propose import (
    Conflict,
    OfAnotherAgent,
    ProposalLine,
    Recorded,
    Replayed,
    StaleBelief,
    UnknownOrder,
)
from refunds.withdraw import TooLate

log = logging.getLogger(__name__)

OUTSIDE_ITS_ORDER = SecurityEvent.Kind.OUTSIDE_ITS_ORDER


class DoorAPI(NinjaAPI):
    """Ninja, with problem details for everything that goes wrong, and a document that says so."""

    def on_exception(self, request: HttpRequest, exc: Any) -> HttpResponse:
        """One place for every exception, instead of Ninja's handlers by class."""
        return problem_of(exc if isinstance(exc, Exception) else exc())

    def get_openapi_schema(self, **kwargs: Any) -> OpenAPISchema:
        """The OpenAPI document, version 3.1."""
        document = super().get_openapi_schema(**kwargs)
        by_id = {
            operation.operation_id: operation
            for router in self._get_bound_routers()
            for view in router.path_operations.values()
            for operation in view.operations
        }
        complete(document, operations=by_id)
        return document


api = DoorAPI(
    title="Refund Once",
    version="1",
    description="Proposes refunds and tells what became of them. An action is identified by the "
    "merchant's own order and request ids; the same proposal again is answered with its action, "
    "for ever, and never refunds twice.",
    parser=StrictParser(),
    urls_namespace="api",
)


def _answers(successes: dict[int, Any], *problems: Kind) -> dict[int, Any]:
    """Every status a call can have, declared."""
    always = (
        Kind.UNAUTHORIZED,
        Kind.FORBIDDEN,
        Kind.UNSUPPORTED_MEDIA_TYPE,
        Kind.INVALID_FIELD,
        Kind.RATE_LIMITED,
        Kind.INTERNAL,
        Kind.UNAVAILABLE,
    )
    return {**successes, **{kind.status: ProblemDetails for kind in (*always, *problems)}}


_BODY = (
    Kind.MALFORMED_JSON,
    Kind.LENGTH_REQUIRED,
    Kind.BODY_TOO_LARGE,
)
# Who may call: the merchant's backend with its key; for what a model's tools do, a session, too.
_ORDERS = AgentBearer(Scope.ORDERS)
_OWN_ORDER = AgentBearer(Scope.ORDERS, sessions=True)
_SESSIONS = AgentBearer(Scope.SESSIONS)
_OWN_SESSION = AgentBearer(Scope.SESSIONS, sessions=True)
_REFUNDS = AgentBearer(Scope.REFUNDS)
_OWN_REFUND = AgentBearer(Scope.REFUNDS, sessions=True)


@api.put(
    "/orders/{order_id}",
    auth=_ORDERS,
    response=_answers({201: OrderAnswer, 200: OrderAnswer}, *_BODY),
    operation_id="mirror_order",
    summary="Mirror an order",
)
def put_order(request: HttpRequest, order_id: Path[Identifier], order: OrderIn) -> HttpResponse:
    """State an order, whole. Repeating it changes nothing; an older `source_version` neither."""
    refuse_unknown_parameters(request)
    mirrored = mirror_order(facts=order.facts(order_id=order_id), actor=_caller(request).actor)
    return _json(OrderAnswer.of(mirrored.order), status=201 if mirrored.created else 200)


@api.get(
    "/orders/{order_id}",
    auth=_OWN_ORDER,
    response=_answers({200: OrderAnswer, 304: None}, Kind.ORDER_UNKNOWN),
    operation_id="get_order",
    summary="An order's balances",
)
def get_order(request: HttpRequest, order_id: Path[Identifier]) -> HttpResponse:
    """What was captured, refunded, reserved and disputed, and what may still be refunded."""
    refuse_unknown_parameters(request)
    caller = _caller(request)
    if caller.session is not None and order_id != caller.session.order.order_id:
        record(kind=OUTSIDE_ITS_ORDER, caller=caller, address=address_of(request))
        return _order_unknown(order_id)
    order = Order.objects.filter(order_id=order_id).first()
    if order is None:
        return _order_unknown(order_id)
    return unless_unchanged(request, _json(OrderAnswer.of(order)))


@api.post(
    "/sessions",
    auth=_SESSIONS,
    response=_answers({201: OpenedSessionAnswer}, Kind.ORDER_UNKNOWN, *_BODY),
    operation_id="open_session",
    summary="Open a session for a model's tools",
)
def post_session(request: HttpRequest, session: SessionIn) -> HttpResponse:
    """Bind an order and a request to a short-lived token, under which nothing takes an id.

    The token is told once. Two sessions of one request are two tokens for the same one refund; a
    second refund of the order needs another request id, which only the backend or a person gives.
    """
    refuse_unknown_parameters(request)
    caller = _caller(request)
    opened = open_session(key=caller.key, **session.model_dump())
    if isinstance(opened, UnknownOrder):
        return _order_unknown(opened.order_id)
    answer = OpenedSessionAnswer.of_new(
        opened.session, reasons=calls.reasons_of(caller), token=opened.token
    )
    return _json(answer, status=201)


@api.get(
    "/sessions/current",
    auth=_OWN_SESSION,
    response=_answers({200: SessionAnswer, 304: None}, Kind.SESSION_UNKNOWN),
    operation_id="get_current_session",
    summary="The session that calls",
)
def get_current_session(request: HttpRequest) -> HttpResponse:
    """What a session is bound to, and what its order has left. 404 with an agent key."""
    refuse_unknown_parameters(request)
    caller = _caller(request)
    if caller.session is None:
        return problem(
            Kind.SESSION_UNKNOWN, detail="An agent key calls, not a session. Nothing was done."
        )
    answer = SessionAnswer.of(caller.session, reasons=calls.reasons_of(caller))
    return unless_unchanged(request, _json(answer))


@api.delete(
    "/sessions/{session_id}",
    auth=_SESSIONS,
    response=_answers({204: None}, Kind.SESSION_UNKNOWN),
    operation_id="revoke_session",
    summary="Revoke a session",
)
def delete_session(request: HttpRequest, session_id: Path[SessionId]) -> HttpResponse:
    """End a session from the next request on. 204 also when it had ended before."""
    refuse_unknown_parameters(request)
    caller = _caller(request)
    if revoke_session(key=caller.key, session_id=session_id, actor=caller.actor) is None:
        record_unknown_session(caller=caller, request=request, session_id=session_id)
        return problem(
            Kind.SESSION_UNKNOWN, detail=f"There is no session {session_id}. Nothing was done."
        )
    return HttpResponse(status=204)


@api.post(
    "/refunds",
    auth=_OWN_REFUND,
    response=_answers(
        {201: ActionAnswer, 200: ActionAnswer},
        Kind.ORDER_UNKNOWN,
        Kind.ACTION_CONFLICT,
        Kind.STALE_BALANCE,
        *_BODY,
    ),
    operation_id="propose_refund",
    summary="Propose a refund",
)
def post_refund(
    request: HttpRequest,
    proposal: ProposalIn,
    idempotency_key: Annotated[IdempotencyKey | None, Header(alias=HEADER)] = None,
) -> HttpResponse:
    """Record one refund and decide it. 201: new. 200: the same was here before, and this is it.

    The policy's verdict is part of the answer, whatever it is. A proposal whose answer was lost may
    be sent again, exactly as it was. A session proposes without ids, since it has its own, and its
    `Idempotency-Key` means nothing. Under one a `reason` that is none of its `reasons` is 422, and
    nothing is recorded.
    """
    refuse_unknown_parameters(request)
    caller = _caller(request)
    order_id, merchant_request_id = _ids(request, caller=caller, proposal=proposal)
    proposed = calls.propose(
        caller=caller,
        order_id=order_id,
        request_id_of_merchant=merchant_request_id,
        **proposal.model_dump(exclude={"lines", "order_id", "request_id"}),
        lines=tuple(ProposalLine(**line.model_dump()) for line in proposal.lines),
        # The session's request is the identity already, and a value that a model's tools made up
        # must not be one that its backend needs.
        idempotency_value=None if caller.session else idempotency_key,
    )
    if isinstance(proposed, UnknownOrder):
        return _order_unknown(proposed.order_id)
    if isinstance(proposed, ValueOfAnotherAction):
        return problem(
            Kind.IDEMPOTENCY_CONFLICT,
            detail=f"Another action was recorded under this {HEADER}. Nothing was recorded now. "
            "Do not choose another key or other ids to get round it; ask a person.",
            fields=[FieldProblem(field=HEADER, reason="belongs to another action")],
            action=_read(proposed.action_id, caller=caller),
        )
    if isinstance(proposed, StaleBelief):
        return problem(
            Kind.STALE_BALANCE,
            detail=f"Refunded so far: {proposed.refunded_minor}, not {proposed.believed_minor}. "
            f"Nothing was recorded. Read the order, and ask whether this refund is still wanted.",
        )
    if isinstance(proposed, Recorded):
        answer = _shown(
            answer_of_new(action=proposed.action, decision=proposed.decision), caller=caller
        )
        _told("Recorded", "proposal.recorded", answer)
        return _json(answer, status=201)
    if isinstance(proposed, OfAnotherAgent):
        record(kind=SecurityEvent.Kind.OF_ANOTHER_AGENT, caller=caller, address=address_of(request))
        return problem(
            Kind.ACTION_CONFLICT,
            detail=f"{proposed.action_id} was proposed by another agent. Nothing was changed or "
            "sent. Do not choose other ids to get round it; ask a person.",
            differing=("agent",),
        )
    return _known(proposed, caller=caller)


def _ids(request: HttpRequest, *, caller: Caller, proposal: ProposalIn) -> tuple[str, str]:
    """The order's and the request's id of a proposal: the session's own, or those it states."""
    stated = {"order_id": proposal.order_id, "request_id": proposal.request_id}
    if caller.session is not None:
        own = {"order_id": caller.session.order.order_id, "request_id": caller.session.request_id}
        if any(value not in (None, own[name]) for name, value in stated.items()):
            record(kind=OUTSIDE_ITS_ORDER, caller=caller, address=address_of(request))
            raise ProblemFound(
                Kind.ACTION_UNKNOWN,
                detail="This session is for another order or request. Nothing was done. Leave "
                "order_id and request_id out.",
            )
        return own["order_id"], own["request_id"]
    missing = [name for name, value in stated.items() if value is None]
    if missing:
        raise ProblemFound(
            Kind.INVALID_FIELD,
            fields=[FieldProblem(field=name, reason="is required") for name in missing],
        )
    return str(proposal.order_id), str(proposal.request_id)


def _known(proposed: Replayed | Conflict, *, caller: Caller) -> HttpResponse:
    answer = _must_read(proposed.action.action_id, caller=caller)
    if isinstance(proposed, Conflict):
        _told("Conflict", "proposal.conflict", answer)
        return problem(
            Kind.ACTION_CONFLICT,
            detail=f"{answer.action_id} exists with another {', '.join(proposed.differing)}. "
            "Nothing was changed or sent. Read the action below; do not choose other ids to get "
            "round it.",
            differing=proposed.differing,
            action=answer,
        )
    _told("Replayed", "proposal.replayed", answer)
    response = _json(answer)
    response["Idempotent-Replayed"] = "true"
    return response


# Before the address with an id: the first that fits is taken.
@api.post(
    "/refunds/withdraw",
    auth=_OWN_REFUND,
    response=_answers({200: ActionAnswer}, Kind.ACTION_UNKNOWN, Kind.TOO_LATE, *_BODY),
    operation_id="withdraw_refund_of_session",
    summary="Withdraw the session's refund",
)
def post_withdrawal_of_session(request: HttpRequest) -> HttpResponse:
    """As for an action by its id; a session needs none. Takes no body. 404 with an agent key."""
    refuse_unknown_parameters(request)
    _refuse_fields(request)
    caller = _caller(request)
    if caller.session is None:
        return problem(
            Kind.ACTION_UNKNOWN,
            detail="An agent key names the action: POST /api/v1/refunds/{action_id}/withdraw. "
            "Nothing was done.",
        )
    return _withdraw(request, action_id=action_id_of(caller.session))


@api.get(
    "/refunds/{action_id}",
    auth=_OWN_REFUND,
    response=_answers({200: ActionAnswer, 304: None}, Kind.ACTION_UNKNOWN),
    operation_id="get_refund",
    summary="A refund action",
)
def get_refund(request: HttpRequest, action_id: Path[ActionId]) -> HttpResponse:
    """Its state, its decision, and one sentence on what to do next."""
    refuse_unknown_parameters(request)
    answer = _read(action_id, caller=_caller(request))
    if answer is None:
        return _action_unknown(request, action_id)
    return unless_unchanged(request, _json(answer))


@api.get(
    "/refunds",
    auth=_OWN_REFUND,
    response=_answers({200: ActionPage}, Kind.ORDER_UNKNOWN),
    operation_id="list_refunds",
    summary="The caller's refund actions of an order",
)
def list_refunds(
    request: HttpRequest,
    order_id: Query[Identifier | None] = None,
    cursor: Query[Cursor | None] = None,
    limit: Query[Limit | None] = None,
) -> HttpResponse:
    """Newest first, `limit` (50) at a time; `cursor` takes the `next_cursor` of the page before.

    A session needs no `order_id` and gets its one action, or none yet.
    """
    refuse_unknown_parameters(request, "order_id", "cursor", "limit")
    caller = _caller(request)
    actions = RefundAction.objects.filter(proposed_by=caller.key.prefix).order_by("-pk")
    if caller.session is not None:
        if order_id not in (None, caller.session.order.order_id):
            record(kind=OUTSIDE_ITS_ORDER, caller=caller, address=address_of(request))
            return _order_unknown(str(order_id))
        order_id = caller.session.order.order_id
        actions = actions.filter(action_id=action_id_of(caller.session))
    if order_id is None:
        raise ProblemFound(
            Kind.INVALID_FIELD, fields=[FieldProblem(field="order_id", reason="is required")]
        )
    actions = actions.filter(order__order_id=order_id)
    if cursor is not None:
        actions = actions.filter(pk__lt=int(cursor))
    size = limit or PAGE_MAX
    found = read_answers(actions[: size + 1])
    if not found and not Order.objects.filter(order_id=order_id).exists():
        return _order_unknown(order_id)
    page = found[:size]
    more = str(page[-1][0]) if len(found) > size else None
    data = [_shown(answer, caller=caller) for _, answer in page]
    return _json(ActionPage(data=data, next_cursor=more))


@api.post(
    "/refunds/{action_id}/withdraw",
    auth=_OWN_REFUND,
    response=_answers({200: ActionAnswer}, Kind.ACTION_UNKNOWN, Kind.TOO_LATE, *_BODY),
    operation_id="withdraw_refund",
    summary="Withdraw a refund",
)
def post_withdrawal(request: HttpRequest, action_id: Path[ActionId]) -> HttpResponse:
    """Take it back before a worker has it. 200 also when it was withdrawn before. Takes no body.

    404: there is nothing to withdraw now. A proposal that is being recorded is waited for and
    withdrawn; one that is still on its way can be recorded afterwards.
    """
    refuse_unknown_parameters(request)
    _refuse_fields(request)
    return _withdraw(request, action_id=action_id)


def _withdraw(request: HttpRequest, *, action_id: str) -> HttpResponse:
    caller = _caller(request)
    withdrawn = calls.withdraw(caller=caller, action_id=action_id)
    if withdrawn is None or isinstance(withdrawn, OfAnotherAgent):
        return _action_unknown(request, action_id)
    answer = _must_read(action_id, caller=caller)
    if isinstance(withdrawn, TooLate):
        _told("Too late to withdraw", "withdrawal.too_late", answer)
        return problem(
            Kind.TOO_LATE,
            detail=f"The action is {answer.state} already; nothing was changed. {answer.next}",
            action=answer,
        )
    _told("Withdrawn", "withdrawal.done", answer)
    return _json(answer)


@api.post(
    "/policy/explain",
    auth=_REFUNDS,
    response=_answers({200: ExplainAnswer}, Kind.ORDER_UNKNOWN, *_BODY),
    operation_id="explain_policy",
    summary="What the policy would say about a refund",
)
def post_explanation(request: HttpRequest, refund: ExplainIn) -> HttpResponse:
    """Decide a refund without proposing it. Nothing is recorded, reserved or sent.

    For integrating and for showing staff what to expect. The proposal is decided again when it is
    made, on the facts of then.
    """
    refuse_unknown_parameters(request)
    explained = explain_refund(
        **refund.model_dump(exclude={"lines"}),
        lines=tuple(ProposalLine(**line.model_dump()) for line in refund.lines),
        proposer=_caller(request).key.prefix,
    )
    if isinstance(explained, UnknownOrder):
        return _order_unknown(explained.order_id)
    return _json(explain_answer(explained))


def _refuse_fields(request: HttpRequest) -> None:
    """Many clients send `{}` with every POST; anything more would be ignored, so it is refused."""
    if request.body:
        require_json(request)
        fields = parse_object(request.body)
        if fields:
            raise InvalidInput(field=shown_name(next(iter(fields))), reason="is not a known field")


def _caller(request: HttpRequest) -> Caller:
    caller = getattr(request, "auth", None)
    if not isinstance(caller, Caller):
        raise TypeError(type(caller))
    return caller


def _shown(answer: ActionAnswer, *, caller: Caller) -> ActionAnswer:
    """An action as this caller may read it."""
    return answer if caller.session is None else without_rules(answer)


def _read(action_id: str, *, caller: Caller) -> ActionAnswer | None:
    answer = calls.read(caller=caller, action_id=action_id)
    return None if answer is None else _shown(answer, caller=caller)


def _must_read(action_id: str, *, caller: Caller) -> ActionAnswer:
    answer = _read(action_id, caller=caller)
    if answer is None:
        raise LookupError(action_id)  # actions are never deleted
    return answer


def _order_unknown(order_id: str) -> HttpResponse:
    return problem(
        Kind.ORDER_UNKNOWN,
        detail=f"Order {order_id} has not been mirrored. Nothing was recorded. The merchant's "
        f"backend mirrors it with PUT /api/v1/orders/{order_id}.",
    )


def _action_unknown(request: HttpRequest, action_id: str) -> HttpResponse:
    record_unknown_action(caller=_caller(request), request=request, action_id=action_id)
    # The same words whether it is another agent's or nobody's.
    return problem(
        Kind.ACTION_UNKNOWN,
        detail=f"There is no action {action_id} now. Nothing was done. A proposal of it that is "
        "still on its way can be recorded later: if one was made, read it in some seconds, and "
        "withdraw it then if it is not wanted.",
    )


def _told(what: str, event: str, answer: ActionAnswer) -> None:
    log.info(
        "%s: %s",
        what,
        answer.state,
        extra={"action": event, "action_id": answer.action_id, "state": answer.state.value},
    )


def _json(answer: BaseModel, *, status: int = 200) -> HttpResponse:
    return HttpResponse(answer.model_dump_json(), status=status, content_type="application/json")
