"""Who calls: a key or a session's token in `Authorization: Bearer …`, and nowhere else."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.http import HttpRequest
from ninja.security import HttpBearer

from agents.callers import Caller
from agents.keys import ProvedKey, note_use, prove_key
from agents.models import Scope, SecurityEvent
from agents.problems import Kind, ProblemFound
from agents.rates import seconds_to_wait
from agents.security import address_of, record
from agents.sessions import prove_session
from agents.strict_json import require_whole_body

log = logging.getLogger(__name__)


class AgentBearer(HttpBearer):
    """Answers the caller, which Ninja puts on `request.auth`; None is a 401.

    `scope` is what a key must be for; `sessions` says whether a session's token opens it, too.
    """

    def __init__(self, scope: Scope, *, sessions: bool = False) -> None:
        super().__init__()
        self.scope = scope
        self.sessions = sessions

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        """One query. A missing, wrong, revoked and expired credential look the same to the caller.

        Raises ProblemFound: 429 for a credential that asks too often, 403 for one that is not for
        this; 400 and 411 for a body that did not come whole. It is looked at here, as the one
        place before every call that no stranger gets to: reading a body takes time.
        """
        # Ninja splits at the first space, and there may be more (RFC 9110, 11.4).
        caller = find_caller(token.strip(), request=request)
        if caller is None:
            return None
        refuse_too_many(caller)
        if caller.session is not None and not self.sessions:
            record(kind=SecurityEvent.Kind.NOT_FOR_THIS, caller=caller, address=address_of(request))
            raise ProblemFound(
                Kind.FORBIDDEN,
                detail="A session is for proposing and reading its one refund. Nothing was done.",
            )
        if caller.session is None and self.scope not in caller.key.scopes:
            record(kind=SecurityEvent.Kind.NOT_FOR_THIS, caller=caller, address=address_of(request))
            raise ProblemFound(
                Kind.FORBIDDEN,
                detail=f"This key was made without the scope {self.scope.value}. Nothing was done.",
            )
        if request.method in ("POST", "PUT"):
            require_whole_body(request)
        return caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whose credential a text is. `is_over`: it proves who calls, and opens nothing any more."""

    caller: Caller
    is_over: bool
    key: ProvedKey | None = None


def prove(token: str) -> Proof | None:
    """Whose this text is; None for text that is nobody's. One query, and nothing is written."""
    session = prove_session(token)
    if session is not None:
        bound = session.session
        return Proof(caller=Caller(key=bound.key, session=bound), is_over=session.is_over)
    key = prove_key(token)
    if key is None:
        return None
    return Proof(caller=Caller(key=key.key), is_over=key.is_over, key=key)


def find_caller(token: str, *, request: HttpRequest) -> Caller | None:
    """The caller that a usable key or session's token proves, or None.

    One query. The first use of a key on a day costs a second one, which writes the day down; the
    use of a credential that is over is counted and recorded.
    """
    proof = prove(token)
    if proof is None:
        log.info("No credential of ours.", extra={"action": "credential.unknown"})
        return None
    if proof.is_over:
        record_within_limit(kind=SecurityEvent.Kind.OVER, proof=proof, request=request)
        return None
    if proof.key is not None:
        note_use(proof.key)
    return proof.caller


def record_within_limit(*, kind: SecurityEvent.Kind, proof: Proof, request: HttpRequest) -> None:
    """Record a request that is refused whatever it asks, unless its credential asks too often.

    So that a storm, also one that goes over all addresses, writes no more rows a minute than the
    credential may make requests. It is not told to wait: there is nothing here for it.
    """
    if seconds_to_wait(proof.caller, is_over=proof.is_over) is None:
        record(kind=kind, caller=proof.caller, address=address_of(request))
    else:
        log.info("A credential asks too often.", extra={"action": "credential.too_often"})


def refuse_too_many(caller: Caller) -> None:
    """Raise ProblemFound (429) when this caller has asked too often.

    The words fit a proposal that was recorded long ago as well, and a model: they invite no call
    but one that reads. What a backend's code does is in docs/api.md.
    """
    wait = seconds_to_wait(caller)
    if wait is not None:
        raise ProblemFound(
            Kind.RATE_LIMITED,
            detail=f"This request was not looked at; what was recorded before stands as it is. "
            f"Wait {wait} s, then read it.",
            retry_after_seconds=wait,
        )
