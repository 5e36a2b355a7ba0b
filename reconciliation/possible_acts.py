"""What a person may do about an action in question: what each act does, who it takes, why not now.

The one place for it: the acts ask here under the action's lock, pages ask here for their buttons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings
from django.contrib.auth.models import User

from approvals.models import CaseAct
from approvals.settle import PERMISSION
from effects.kinds import kind_of
from effects.models import Case
from effects.people import actor_of
from effects.states import State
from reconciliation.check_now import why_not_now
from reconciliation.circumstances import Circumstances, Look, read_circumstances
from reconciliation.second_look import BY_LIST, BY_TOTALS
from reconciliation.settle import settled_at
from refunds.kind import REFUND
from refunds.withdraw import WITHDRAWABLE

DECLARE_PERMISSION = "approvals.declare_not_executed"

# A person who sends again has just seen that nothing was there.
LOOK_FRESH = timedelta(seconds=120)


class Name(StrEnum):
    """The acts on a case. Those that are kept as rows have the values of `CaseAct.Act`."""

    CHECK = "check"
    LINK = "link"
    SEND_AGAIN = "send_again"
    NEW_KEY = "new_key"
    GIVE_UP = "give_up"
    WITHDRAW = "withdraw"
    ASSIGN = "assign"
    SNOOZE = "snooze"


# One sentence each: what exactly happens, and what can go wrong by it.
CONSEQUENCES: dict[Name, str] = {
    Name.CHECK: "Reads the provider in two ways and adopts what that proves; it never sends.",
    Name.LINK: "Fetches the refund you name from the provider, verifies its payment, amount and "
    "currency, and takes it as this one; a wrong link would hide a second refund, so it takes two "
    "people when the refund does not carry our id.",
    Name.SEND_AGAIN: "Reads once more and, if the provider still shows nothing, sends the same "
    "request under the same key, of which the provider makes one refund however often it comes.",
    Name.NEW_KEY: "Declares that the request did nothing, and lets it be approved and sent once "
    "more under a new key: HIGH RISK, because the customer is paid twice if it did happen.",
    Name.GIVE_UP: "Ends it as failed, so that nothing is ever sent for it again and a remedy can "
    "be proposed: HIGH RISK, because the customer is paid twice if it surfaces later; it is "
    "watched for 30 days.",
    Name.WITHDRAW: "Cancels a refund of which nothing was executed and gives its amount back to "
    "the balance; the customer gets nothing by it.",
    Name.ASSIGN: "Gives the case to another person; its due time stays.",
    Name.SNOOZE: "Lets the case ask nobody before a later time; its due time stays.",
}

# When each of them is possible, for who reads about them; the conditions below are what decides.
WHEN: dict[Name, str] = {
    Name.CHECK: "always, 10 seconds apart",
    Name.LINK: "the outcome is unknown, or it failed",
    Name.SEND_AGAIN: "the outcome is unknown, its key is younger than `KEY_RESEND_SECONDS`, the "
    "settle time is over, and a look less than 2 minutes old showed nothing",
    Name.NEW_KEY: "the outcome is unknown, its key is past `KEY_RESEND_SECONDS`, no attempt is "
    "open and every lease over, no incident and no refund made elsewhere is open on the order, "
    "and two looks by two methods, `CASE_LOOKS_APART_SECONDS` apart, showed nothing; the amount "
    "is typed. One person, without those looks, where an answer stored under the key refused it",
    Name.GIVE_UP: "as for a new key; nothing is typed",
    Name.WITHDRAW: "nothing was ever sent, or it proved not executed",
    Name.ASSIGN: "always",
    Name.SNOOZE: "before its due time",
}

LABELS: dict[Name, str] = {
    Name.CHECK: "Check the provider now",
    Name.LINK: "Link an existing refund",
    Name.SEND_AGAIN: "Send again with the same key",
    Name.NEW_KEY: "Declare not executed, allow a new key",
    Name.GIVE_UP: "Give up, on to a remedy",
    Name.WITHDRAW: "Withdraw",
    Name.ASSIGN: "Assign",
    Name.SNOOZE: "Snooze",
}

# Two people, but where a stored refusal proves what they would vouch for.
BY_TWO = (Name.NEW_KEY, Name.GIVE_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act as a button: what it does, and whether this person can do it now.

    `people`: how many it takes (a link: at least). `waits_for_second`: who has asked for it
    already and what about, as sentences.
    """

    name: Name
    label: str
    consequence: str
    people: int
    enabled: bool
    why_not: str = ""
    waits_for_second: tuple[str, ...] = ()


def possible_acts(*, case: Case, user: User, now: datetime) -> list[Act]:
    """Every act on a case for one person, the impossible ones with the reason. Reads only.

    `now` is database time. A case that is about no single action can only be given on or put off.
    """
    kind = kind_of(case.action_id)
    action = (
        kind.action_model._default_manager.filter(action_id=case.action_id).first()
        if kind is not None
        else None
    )
    if kind is None or action is None:
        return [
            _of_the_case(name, case=case, user=user, now=now) for name in (Name.ASSIGN, Name.SNOOZE)
        ]
    here = read_circumstances(kind=kind, action=action, case=case, now=now)
    return [
        _of_the_case(name, case=case, user=user, now=now)
        if name in (Name.ASSIGN, Name.SNOOZE)
        else _act(name, here=here, user=user)
        for name in Name
    ]


def _act(name: Name, *, here: Circumstances, user: User) -> Act:
    refusal = why_not(name, here=here, user=user)
    return Act(
        name=name,
        label=LABELS[name],
        consequence=CONSEQUENCES[name],
        people=people_needed(name, here=here),
        enabled=not refusal,
        why_not=refusal,
        waits_for_second=_waiting(name, here=here),
    )


def _of_the_case(name: Name, *, case: Case, user: User, now: datetime) -> Act:
    refusal = permission_missing(name, user=user) or _closed(case)
    if not refusal and name is Name.SNOOZE and case.due_at <= now:
        refusal = f"It was due at {_clock(case.due_at)}, and cannot be put off any more."
    return Act(
        name=name,
        label=LABELS[name],
        consequence=CONSEQUENCES[name],
        people=1,
        enabled=not refusal,
        why_not=refusal,
    )


def people_needed(name: Name, *, here: Circumstances) -> int:
    """How many people it takes. A stored refusal proves what else two people must vouch for."""
    return 2 if name in BY_TWO and not here.refusal else 1


def why_not(name: Name, *, here: Circumstances, user: User) -> str:
    """Why this person cannot do this now, as sentences; "" when they can."""
    return (
        permission_missing(name, user=user)
        or _closed(here.case)
        or _CONDITIONS[name](here)
        or _who(name, here=here, user=user)
    )


def permission_missing(name: Name, *, user: User) -> str:
    """Why this person may not do this at all, as a sentence; "" when they may."""
    needed = permission_needed(name)
    return "" if user.has_perm(needed) else f"This needs the permission {needed}."


def permission_needed(name: Name) -> str:
    """The permission that an act takes."""
    return DECLARE_PERMISSION if name in BY_TWO else PERMISSION


def _closed(case: Case) -> str:
    return "The case is closed." if case.closed_at is not None else ""


def first_word(name: Name, *, here: Circumstances, subject: str = "") -> CaseAct | None:
    """Whose word for an act waits for a second person, while whoever gave it still may."""
    first = here.first_word(name.value, subject=subject)
    if first is None or permission_missing(name, user=first.person):
        return None
    return first


def _who(name: Name, *, here: Circumstances, user: User) -> str:
    """Four eyes: not by whoever asked for the money, and not twice by the same person."""
    if name not in BY_TWO:
        return ""
    action = here.action
    if action.proposed_by in (user.get_username(), actor_of(user)):
        return "Whoever proposed it cannot vouch that it did not happen. Ask somebody else."
    if action.proposer_owner_id == user.pk:
        return "Whoever answers for its proposer cannot vouch that it did not happen."
    first = first_word(name, here=here)
    if first is not None and first.person_id == user.pk and people_needed(name, here=here) > 1:
        return "You have asked for it already. A second person must agree."
    return ""


def _waiting(name: Name, *, here: Circumstances) -> tuple[str, ...]:
    """Whose word waits for a second person, while the act can still be done."""
    if name not in (*BY_TWO, Name.LINK) or _CONDITIONS[name](here):
        return ()
    subjects = {word.subject for word in here.words if word.act == name.value}
    firsts = (first_word(name, here=here, subject=subject) for subject in sorted(subjects))
    return tuple(
        f"{first.person.get_username()} asked for it at {_clock(first.at)}"
        + (f" with {first.subject}" if first.subject else "")
        + f": {first.note}"
        for first in firsts
        if first is not None
    )


# -- conditions: what must be so, whoever asks ----------------------------------------------------


def _check(here: Circumstances) -> str:
    return why_not_now(kind=here.kind, action=here.action, now=here.now)


def _link(here: Circumstances) -> str:
    state = State(here.action.state)
    if state in (State.UNKNOWN, State.FAILED_FINAL):
        return ""
    return (
        f"It is {state.label}. A refund is linked where it is not known what became of a request."
    )


def _send_again(here: Circumstances) -> str:
    """The key is young, nothing is on its way, and somebody has just looked and found nothing."""
    limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    promises = here.kind.promises(action=here.action)
    refusal = _not_unknown(here) or _on_the_wire(here)
    if refusal:
        return refusal
    if not (promises.has_keys and promises.searchable):
        return (
            "This provider cannot be searched, or knows no keys: a repeated request may pay twice."
        )
    if here.key_age >= limit:
        return (
            f"Its key is {_span(here.key_age)} old. Past {_span(limit)} nothing is sent under it, "
            "because the provider may have forgotten it."
        )
    believed_from = settled_at(here.last_claim) if here.last_claim else here.now
    if here.now < believed_from:
        return (
            f"The last request may still be on its way. Not before {_clock(believed_from)} does an "
            "empty list mean anything."
        )
    look = here.last_look(BY_LIST)
    if look is None or not look.is_absent or here.now - look.read_at >= LOOK_FRESH:
        return (
            "Check the provider first: sending again needs a look that showed nothing, less than "
            f"{_span(LOOK_FRESH)} old."
        )
    return ""


def _declared(here: Circumstances) -> str:
    """What two people may vouch for: the key is dead, nobody is sending, and nothing was seen."""
    limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    refusal = _not_unknown(here) or _on_the_wire(here)
    if refusal:
        return refusal
    if not here.kind.promises(action=here.action).searchable:
        return "This provider cannot be searched: nobody can show that nothing was executed."
    if here.key_age < limit:
        return (
            f"Its key is {_span(here.key_age)} old. Until it is {_span(limit)} old, look again or "
            "send again with the same key: that cannot pay twice."
        )
    if here.blocked_by:
        return (
            f'A case "{here.blocked_by}" is open on {here.case.resource}. Settle that first: the '
            "money may be back already."
        )
    return "" if here.refusal else _too_few_looks(here)


def _too_few_looks(here: Circumstances) -> str:
    """Two look-ups by two methods, spaced apart, that showed nothing."""
    apart = timedelta(seconds=settings.CASE_LOOKS_APART_SECONDS)
    by_list = [look for look in here.absent_looks if look.method == BY_LIST]
    by_totals = [look for look in here.absent_looks if look.method == BY_TOTALS]
    if any(abs(one.read_at - other.read_at) >= apart for one in by_list for other in by_totals):
        return ""
    needed = (
        f"It takes two look-ups that showed nothing, by two methods, {_span(apart)} apart: the "
        "list of refunds, and the payment's total."
    )
    if not by_list or not by_totals:
        seen = f"There are {len(by_list)} by the list and {len(by_totals)} by the total."
        return f"{needed} {seen} Check the provider now."
    earliest: Look = min((*by_list, *by_totals), key=lambda look: look.read_at)
    return f"{needed} Check the provider again from {_clock(earliest.read_at + apart)} on."


def _withdraw(here: Circumstances) -> str:
    """Nothing was executed: the database lets no attempt be unresolved in these states."""
    state = State(here.action.state)
    if here.kind is not REFUND:
        return "Only a refund is withdrawn here."
    if state in WITHDRAWABLE:
        return ""
    if state in (State.SUBMITTING, State.UNKNOWN):
        return "A request was sent, and whether it did anything must be found out first."
    return f"It is {state.label}: there is nothing to withdraw."


def _not_unknown(here: Circumstances) -> str:
    state = State(here.action.state)
    return "" if state is State.UNKNOWN else f"It is {state.label}: its outcome is not in question."


def _on_the_wire(here: Circumstances) -> str:
    """A worker may still send while its lease runs, whatever became of it."""
    running = [a.lease_until for a in here.attempts if a.lease_until > here.now]
    if running:
        return f"A worker may still be sending it. Its lease is over at {_clock(max(running))}."
    if any(attempt.closed_at is None for attempt in here.attempts):
        return "An attempt is still open. The next sweep closes it."
    return ""


_CONDITIONS: dict[Name, Callable[[Circumstances], str]] = {
    Name.CHECK: _check,
    Name.LINK: _link,
    Name.SEND_AGAIN: _send_again,
    Name.NEW_KEY: _declared,
    Name.GIVE_UP: _declared,
    Name.WITHDRAW: _withdraw,
}


def _span(span: timedelta) -> str:
    """`90 s`, `12 min`, `6 h 41 min`."""
    seconds = int(span.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    minutes = seconds // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
