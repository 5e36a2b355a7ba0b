"""Drafts of a policy: one person edits, another one publishes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from effects.clock import database_now
from effects.people import NOTE_CHARACTERS_MAX, actor_of, is_note
from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput
from policies.models import PolicyDraft, PolicyEvent, PolicyVersion
from policies.read_parameters import read_parameters
from policies.versions import append, hash_of, in_force, lock_versions

EDIT_PERMISSION = "policies.change_policydraft"
PUBLISH_PERMISSION = "policies.publish_policy"
NAME_CHARACTERS_MAX = 80


class Why(StrEnum):
    """Why nothing was done."""

    NOT_PERMITTED = "not_permitted"
    UNKNOWN_DRAFT = "unknown_draft"
    IS_OVER = "is_over"
    CHANGED_SINCE = "changed_since"
    OLD_BASE = "old_base"
    BAD_TEXT = "bad_text"
    BAD_PARAMETERS = "bad_parameters"
    IS_EDITOR = "is_editor"
    CHANGES_NOTHING = "changes_nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The draft as it is now; `seen_hash` names exactly this content."""

    draft_id: int
    seen_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The draft is over. It stays readable."""

    draft_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The draft is the policy version of this number, in force from now on."""

    draft_id: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was changed. `sentence` is for the person."""

    why: Why
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a person typed. `parameters` is any JSON value; it is read strictly.

    `based_on` is the number of the version that the person compared it with, 0 for none.
    """

    name: str
    parameters: object
    note: str
    based_on: int


def content_hash(draft: PolicyDraft) -> str:
    """Names the content of a draft: what a person was shown, to be compared when they act on it."""
    return sha256_hex(
        canonical_json(
            {
                "name": draft.name,
                "note": draft.note,
                "parameters_hash": draft.parameters_hash,
                "based_on": draft.based_on_id or 0,
            }
        )
    )


def save_draft(
    *,
    user: User,
    content: Content,
    draft_id: int | None = None,
    seen_hash: str = "",
    imported_from: str = "",
) -> Saved | Refused:
    """Write a new draft, or change one as `user` saw it (`seen_hash`). One transaction.

    1. Lock the draft.
    2. Refuse, changing nothing: see `why_not_saved`.
    3. Write it, and `user` among its editors for good.
    4. Append the event, with all that was written.
    """
    with transaction.atomic():
        refusal = why_not_saved(user=user, content=content, draft_id=draft_id, seen_hash=seen_hash)
        if refusal is not None:
            return refusal
        parameters = read_parameters(content.parameters)
        now = database_now()
        written: dict[str, Any] = {
            "name": content.name.strip(),
            "note": content.note,
            "parameters": parameters.as_json(),
            "parameters_hash": hash_of(parameters),
            "based_on": in_force(),
            "edited_by": user,
            "edited_at": now,
        }
        if draft_id is None:
            draft = PolicyDraft.objects.create(
                **written, created_by=user, created_at=now, editors=[user.pk]
            )
        else:
            draft = PolicyDraft.objects.get(pk=draft_id)
            for name, value in written.items():
                setattr(draft, name, value)
            draft.editors = sorted({*draft.editors, user.pk})
            draft.save(update_fields=[*written, "editors"])
        _event(
            kind=PolicyEvent.Kind.IMPORTED if imported_from else PolicyEvent.Kind.SAVED,
            user=user,
            draft=draft,
            data={
                "name": draft.name,
                "note": draft.note,
                "based_on": content.based_on,
                "parameters": draft.parameters,
                "parameters_hash": draft.parameters_hash,
            }
            | ({"imported_from": imported_from} if imported_from else {}),
        )
    return Saved(draft_id=draft.pk, seen_hash=content_hash(draft))


def why_not_saved(
    *, user: User, content: Content, draft_id: int | None, seen_hash: str
) -> Refused | None:
    """Why this is not saved, or None. Locks the draft, so call it in a transaction."""
    if not user.has_perm(EDIT_PERMISSION):
        return Refused(
            why=Why.NOT_PERMITTED,
            sentence=f"Editing a policy draft needs the permission {EDIT_PERMISSION}. Nothing was "
            "saved.",
        )
    if draft_id is not None:
        locked = _lock(draft_id=draft_id, seen_hash=seen_hash, undone="saved")
        if isinstance(locked, Refused):
            return locked
    refusal = _old_base(content.based_on, undone="saved")
    if refusal is not None:
        return refusal
    name = content.name.strip()
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        return Refused(
            why=Why.BAD_TEXT,
            sentence=f"The name must be one line of 1 to {NAME_CHARACTERS_MAX} characters. Nothing "
            "was saved.",
        )
    if not is_note(content.note):
        return Refused(
            why=Why.BAD_TEXT,
            sentence=f"The note must be text of at most {NOTE_CHARACTERS_MAX} characters. Nothing "
            "was saved.",
        )
    try:
        hash_of(read_parameters(content.parameters))
    except InvalidInput as error:
        return Refused(
            why=Why.BAD_PARAMETERS, sentence=f"{error.field}: {error.reason}. Nothing was saved."
        )
    return None


def discard_draft(*, user: User, draft_id: int, seen_hash: str) -> Discarded | Refused:
    """End a draft that will not be published. One transaction."""
    if not user.has_perm(EDIT_PERMISSION):
        return Refused(
            why=Why.NOT_PERMITTED,
            sentence=f"Discarding a policy draft needs the permission {EDIT_PERMISSION}. Nothing "
            "was changed.",
        )
    with transaction.atomic():
        draft = _lock(draft_id=draft_id, seen_hash=seen_hash, undone="discarded")
        if isinstance(draft, Refused):
            return draft
        _close(draft, state=PolicyDraft.State.DISCARDED)
        _event(kind=PolicyEvent.Kind.DISCARDED, user=user, draft=draft, data={})
    return Discarded(draft_id=draft_id)


def publish_draft(*, user: User, draft_id: int, seen_hash: str) -> Published | Refused:
    """Put a draft in force, as `user` saw it (`seen_hash`). One transaction.

    1. Let nobody else publish, then lock the draft.
    2. Refuse, changing nothing: `user` edited it, ever; it changed since it was looked at; it was
       compared with a version that is not in force any more; its parameters cannot be read, or
       say what is in force already.
    3. Append the version and its event; the draft is over.
    """
    with transaction.atomic():
        lock_versions()
        draft = _lock(draft_id=draft_id, seen_hash=seen_hash, undone="published")
        if isinstance(draft, Refused):
            return draft
        refusal = why_not_published(user=user, draft=draft)
        if refusal is not None:
            return refusal
        version = append(
            parameters=read_parameters(draft.parameters),
            published_by=actor_of(user),
            note=draft.note,
            editor=draft.edited_by,
            publisher=user,
            draft=draft,
        )
        _close(draft, state=PolicyDraft.State.PUBLISHED)
    return Published(draft_id=draft_id, number=version.number)


def why_not_published(*, user: User, draft: PolicyDraft) -> Refused | None:
    """Why this person cannot publish this draft as it is, or None."""
    if not user.has_perm(PUBLISH_PERMISSION):
        return Refused(
            why=Why.NOT_PERMITTED,
            sentence=f"Publishing a policy needs the permission {PUBLISH_PERMISSION}. Nothing was "
            "published.",
        )
    if draft.state != PolicyDraft.State.OPEN:
        return _is_over(draft, undone="published")
    if user.pk in draft.editors:
        return Refused(
            why=Why.IS_EDITOR,
            sentence="You edited this draft, so somebody else publishes it. Nothing was published.",
        )
    refusal = _old_base(draft.based_on.number if draft.based_on else 0, undone="published")
    if refusal is not None:
        return refusal
    try:
        parameters = read_parameters(draft.parameters)
    except InvalidInput as error:
        return Refused(
            why=Why.BAD_PARAMETERS,
            sentence=f"{error.field}: {error.reason}. Nothing was published; the draft must be "
            "edited.",
        )
    if draft.based_on is not None and hash_of(parameters) == draft.based_on.parameters_hash:
        return Refused(
            why=Why.CHANGES_NOTHING,
            sentence="It says what the version in force says. Nothing was published: a new version "
            "would only make every approval stale.",
        )
    return None


def _lock(*, draft_id: int, seen_hash: str, undone: str) -> PolicyDraft | Refused:
    """The draft, locked, when it is open and as it was seen."""
    draft = PolicyDraft.objects.select_for_update().filter(pk=draft_id).first()
    if draft is None:
        return Refused(
            why=Why.UNKNOWN_DRAFT, sentence=f"There is no such draft. Nothing was {undone}."
        )
    if draft.state != PolicyDraft.State.OPEN:
        return _is_over(draft, undone=undone)
    if content_hash(draft) != seen_hash:
        return Refused(
            why=Why.CHANGED_SINCE,
            sentence=f"Nothing was {undone}: {draft.edited_by.get_username()} changed the draft "
            f"after you opened it, at {draft.edited_at:%H:%M} UTC. Look at it again.",
        )
    return draft


def _is_over(draft: PolicyDraft, *, undone: str) -> Refused:
    return Refused(
        why=Why.IS_OVER,
        sentence=f"This draft was {draft.state} already and stays as it is. Nothing was {undone}.",
    )


def _old_base(based_on: int, *, undone: str) -> Refused | None:
    version: PolicyVersion | None = in_force()
    number = version.number if version else 0
    if number == based_on:
        return None
    return Refused(
        why=Why.OLD_BASE,
        sentence=f"Nothing was {undone}: version {number} is in force, and this was compared with "
        f"version {based_on}. Open the draft, look at what differs now, and save it again.",
    )


def _close(draft: PolicyDraft, *, state: PolicyDraft.State) -> None:
    draft.state, draft.closed_at = state, database_now()
    draft.save(update_fields=["state", "closed_at"])


def _event(*, kind: str, user: User, draft: PolicyDraft, data: dict[str, Any]) -> None:
    PolicyEvent.objects.create(
        kind=kind, actor=actor_of(user), person=user, at=database_now(), draft=draft, data=data
    )
