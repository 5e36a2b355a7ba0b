"""`manage.py agent_key create NAME | list | rotate PREFIX | owner PREFIX WHO | revoke PREFIX`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Prefetch

from agents.keys import (
    CreatedKey,
    RotationRefused,
    change_owner,
    create_key,
    revoke_key,
    rotate_key,
)
from agents.models import AgentKey, AgentSecret, Scope
from effects.clock import database_now
from kernel.errors import InvalidInput

EXPIRES_IN_DAYS_MAX = 3_650
# What is kept for longer than this is not being rotated.
KEEP_HOURS_DEFAULT, KEEP_HOURS_MAX = 24, 24 * 30
NOT_TOLD = "somebody with a shell"


class Command(BaseCommand):
    """The key itself goes to stdout and the sentences to stderr: `KEY=$(… create shop)` works."""

    help = "Creates, lists, rotates and revokes the keys that a merchant's backend calls with."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a key and print it, once")
        create.add_argument("name", help="whose key it is, like shop-backend")
        create.add_argument("--scope-note", default="", help="what it is meant for, for people")
        create.add_argument(
            "--scope",
            action="append",
            choices=Scope.values,
            help="what it may be used for; once for each; left out: everything an agent may",
        )
        create.add_argument(
            "--owner",
            default="",
            metavar="USERNAME",
            help="who of the staff answers for what it proposes, and cannot approve that",
        )
        _add_expiry(create)
        actions.add_parser("list", help="every key and how old its secrets are, without them")
        rotate = actions.add_parser("rotate", help="give a key another secret and print it, once")
        rotate.add_argument("prefix", help="the public part, as `list` shows it")
        rotate.add_argument(
            "--keep-hours",
            type=int,
            default=KEEP_HOURS_DEFAULT,
            metavar="N",
            help=f"how long the older secret still works: 0 to {KEEP_HOURS_MAX}, "
            f"{KEEP_HOURS_DEFAULT} unless said; 0 ends it at once, as for one that leaked",
        )
        _add_expiry(rotate)
        owner = actions.add_parser("owner", help="let somebody else answer for a key")
        owner.add_argument("prefix", help="the public part, as `list` shows it")
        owner.add_argument("username", help="an active member of staff; '' for nobody")
        owner.add_argument("--by", required=True, help="who you are, for the history")
        revoke = actions.add_parser("revoke", help="end a key, and its sessions, at once")
        revoke.add_argument("prefix", help="the public part, as `list` shows it")
        for each in (create, rotate, revoke):
            each.add_argument("--by", default=NOT_TOLD, help="who you are, for the history")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "list":
            self._list()
            return
        by = options["by"]
        if not by.strip() or not by.isprintable():
            raise CommandError("Say who you are with --by. Nothing was changed.")
        options["actor"] = f"operator:{by}"[:80]
        do: dict[str, Callable[..., None]] = {
            "create": self._create,
            "rotate": self._rotate,
            "owner": self._owner,
            "revoke": self._revoke,
        }
        do[options["action"]](**options)

    def _create(
        self,
        *,
        name: str,
        scope_note: str,
        scope: list[str] | None,
        owner: str,
        actor: str,
        **options: Any,
    ) -> None:
        person = _member_of_staff(owner, done="No key was made.")
        try:
            created = create_key(
                name=name,
                scope_note=scope_note,
                owner=person,
                scopes=scope,
                expires_in=_expiry(options),
                actor=actor,
            )
        except InvalidInput as error:
            raise CommandError(f"The {error.field} {error.reason}. No key was made.") from error
        self._print_once(created)
        self.stderr.write(
            f"Key {created.prefix} for {name} was made. It is shown this once and cannot be shown "
            "again: only its digest is kept. Send it as `Authorization: Bearer <key>`; end it with "
            f"`manage.py agent_key revoke {created.prefix}`."
            + (
                ""
                if person
                else f" Nobody answers for it yet: anybody who may can approve what it proposes. "
                f"Name somebody: `manage.py agent_key owner {created.prefix} USERNAME --by YOU`."
            )
        )

    def _print_once(self, created: CreatedKey) -> None:
        self.stdout.write(created.key)
        if created.expires_at:
            self.stderr.write(f"It ends at {_shown(created.expires_at)}.")

    def _list(self) -> None:
        now = database_now()
        keys = (
            AgentKey.objects.select_related("owner")
            .prefetch_related(Prefetch("secrets", AgentSecret.objects.order_by("pk")))
            .order_by("created_at")
        )
        for key in keys:
            state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "in use"
            used = f"last used {key.last_used_on}" if key.last_used_on else "never used"
            owner = f"owner {key.owner.get_username()}" if key.owner else "no owner"
            note = f"  {key.scope_note}" if key.scope_note else ""
            self.stdout.write(
                f"{key.prefix}  {key.name}  made {key.created_at:%Y-%m-%d}  {state}  {used}  "
                f"{owner}  may {', '.join(key.scopes)}{note}"
            )
            for secret in key.secrets.all():
                self.stdout.write(f"    secret {_age(secret, now=now)}")
        if not keys:
            self.stderr.write("There are no keys. Make one: manage.py agent_key create NAME")

    def _rotate(self, *, prefix: str, keep_hours: int, actor: str, **options: Any) -> None:
        if not 0 <= keep_hours <= KEEP_HOURS_MAX:
            raise CommandError(
                f"--keep-hours must be 0 to {KEEP_HOURS_MAX}. Nothing was changed; the old secret "
                "works on."
            )
        rotated = rotate_key(
            prefix=prefix,
            actor=actor,
            keep=timedelta(hours=keep_hours),
            expires_in=_expiry(options),
        )
        if rotated is RotationRefused.NO_SUCH_KEY:
            raise _no_such_key(prefix)
        if rotated is RotationRefused.REVOKED:
            raise CommandError(
                f"Key {prefix} is revoked, for good; nothing was changed. Make another one: "
                "`manage.py agent_key create NAME`."
            )
        if rotated is RotationRefused.TWO_ARE_LIVE:
            raise CommandError(
                f"Two secrets of {prefix} are live already; nothing was changed. `manage.py "
                "agent_key list` says when the older one ends. `--keep-hours 0` ends both now and "
                "makes a new one."
            )
        self._print_once(rotated.created)
        older = f"until {_shown(rotated.older_end_at)}" if keep_hours else "no more"
        self.stderr.write(
            f"Key {prefix} has this new secret, shown this once. What worked before works {older}. "
            "The agent is the same: its refunds, limits and sessions go on."
        )

    def _owner(self, *, prefix: str, username: str, actor: str, **options: Any) -> None:
        owner = _member_of_staff(username, done="Nothing was changed.")
        changed = change_owner(prefix=prefix, owner=owner, actor=actor)
        if changed is None:
            raise _no_such_key(prefix)
        whom = username or "nobody"
        self.stderr.write(
            f"From now on {whom} answers for what {prefix} proposes. What it has proposed already "
            "stays with the owner of that time."
            if changed
            else f"Key {prefix} belonged to {whom} before; nothing was changed."
        )

    def _revoke(self, *, prefix: str, actor: str, **options: Any) -> None:
        revoked = revoke_key(prefix=prefix, actor=actor)
        if revoked is None:
            raise _no_such_key(prefix)
        self.stderr.write(
            f"Key {prefix} is revoked, and its sessions with it. Requests with them are answered "
            "401 from now on; actions that it proposed go on."
            if revoked
            else f"Key {prefix} was revoked before; nothing was changed."
        )


def _add_expiry(parser: CommandParser) -> None:
    parser.add_argument(
        "--expires-in-days",
        type=int,
        metavar="N",
        help=f"the secret ends by itself: 1 to {EXPIRES_IN_DAYS_MAX}; left out: it does not",
    )


def _expiry(options: dict[str, Any]) -> timedelta | None:
    days = options["expires_in_days"]
    if days is None:
        return None
    if not 1 <= days <= EXPIRES_IN_DAYS_MAX:
        raise CommandError(
            f"--expires-in-days must be 1 to {EXPIRES_IN_DAYS_MAX}. Nothing was changed."
        )
    return timedelta(days=days)


def _age(secret: AgentSecret, *, now: datetime) -> str:
    made = f"made {secret.created_at:%Y-%m-%d}, {(now - secret.created_at).days} days ago"
    if secret.expires_at is None:
        return f"{made}, has no end"
    ends = "ended" if secret.expires_at <= now else "ends"
    return f"{made}, {ends} {_shown(secret.expires_at)}"


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _no_such_key(prefix: str) -> CommandError:
    return CommandError(
        f"There is no key {prefix!r}; nothing was changed. The prefixes are shown by "
        "`manage.py agent_key list`."
    )


def _member_of_staff(username: str, *, done: str) -> User | None:
    """The person of that name; None for "". Raises CommandError for somebody who is no staff."""
    if not username:
        return None
    user = User.objects.filter(username=username, is_active=True, is_staff=True).first()
    if user is None:
        raise CommandError(f"There is no active member of staff called {username!r}. {done}")
    return user
