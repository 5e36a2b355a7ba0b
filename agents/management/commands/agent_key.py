"""`manage.py agent_key create NAME | list | owner PREFIX USERNAME | revoke PREFIX`."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents.keys import change_owner, create_key, revoke_key
from agents.models import AgentKey
from kernel.errors import InvalidInput


class Command(BaseCommand):
    """The key itself goes to stdout and the sentences to stderr: `KEY=$(… create shop)` works."""

    help = "Creates, lists and revokes the keys that a merchant's backend calls the API with."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a key and print it, once")
        create.add_argument("name", help="whose key it is, like shop-backend")
        create.add_argument("--scope-note", default="", help="what it is meant for, for people")
        create.add_argument(
            "--owner",
            default="",
            metavar="USERNAME",
            help="who of the staff answers for what it proposes, and cannot approve that",
        )
        actions.add_parser("list", help="every key, without its secret")
        owner = actions.add_parser("owner", help="let somebody else answer for a key")
        owner.add_argument("prefix", help="the public part, as `list` shows it")
        owner.add_argument("username", help="an active member of staff; '' for nobody")
        owner.add_argument("--by", required=True, help="who you are, for the history")
        revoke = actions.add_parser("revoke", help="end a key at once")
        revoke.add_argument("prefix", help="the public part, as `list` shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "create":
            self._create(
                name=options["name"],
                scope_note=options["scope_note"],
                owner=_member_of_staff(options["owner"], done="No key was made."),
            )
        elif options["action"] == "owner":
            self._owner(prefix=options["prefix"], username=options["username"], by=options["by"])
        elif options["action"] == "revoke":
            self._revoke(prefix=options["prefix"])
        else:
            self._list()

    def _create(self, *, name: str, scope_note: str, owner: User | None) -> None:
        try:
            created = create_key(name=name, scope_note=scope_note, owner=owner)
        except InvalidInput as error:
            raise CommandError(f"The name {error.reason}. No key was made.") from error
        self.stdout.write(created.key)
        self.stderr.write(
            f"Key {created.prefix} for {name} was made. It is shown this once and cannot be shown "
            "again: only its digest is kept. Send it as `Authorization: Bearer <key>`; end it with "
            f"`manage.py agent_key revoke {created.prefix}`."
            + (
                ""
                if owner
                else f" Nobody answers for it yet: anybody who may can approve what it proposes. "
                f"Name somebody: `manage.py agent_key owner {created.prefix} USERNAME --by YOU`."
            )
        )

    def _list(self) -> None:
        keys = AgentKey.objects.select_related("owner").order_by("created_at")
        for key in keys:
            state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "in use"
            used = f"last used {key.last_used_on}" if key.last_used_on else "never used"
            owner = f"owner {key.owner.get_username()}" if key.owner else "no owner"
            note = f"  {key.scope_note}" if key.scope_note else ""
            self.stdout.write(
                f"{key.prefix}  {key.name}  made {key.created_at:%Y-%m-%d}  {state}  {used}  "
                f"{owner}{note}"
            )
        if not keys:
            self.stderr.write("There are no keys. Make one: manage.py agent_key create NAME")

    def _owner(self, *, prefix: str, username: str, by: str) -> None:
        if not by.strip() or not by.isprintable():
            raise CommandError("Say who you are with --by. Nothing was changed.")
        owner = _member_of_staff(username, done="Nothing was changed.")
        changed = change_owner(prefix=prefix, owner=owner, actor=f"operator:{by}"[:80])
        if changed is None:
            raise CommandError(
                f"There is no key {prefix!r}; nothing was changed. The prefixes are shown by "
                "`manage.py agent_key list`."
            )
        whom = username or "nobody"
        self.stderr.write(
            f"From now on {whom} answers for what {prefix} proposes. What it has proposed already "
            "stays with the owner of that time."
            if changed
            else f"Key {prefix} belonged to {whom} before; nothing was changed."
        )

    def _revoke(self, *, prefix: str) -> None:
        revoked = revoke_key(prefix=prefix)
        if revoked is None:
            raise CommandError(
                f"There is no key {prefix!r}; nothing was changed. The prefixes are shown by "
                "`manage.py agent_key list`."
            )
        self.stderr.write(
            f"Key {prefix} is revoked. Requests with it are answered 401 from now on; actions that "
            "it proposed go on."
            if revoked
            else f"Key {prefix} was revoked before; nothing was changed."
        )


def _member_of_staff(username: str, *, done: str) -> User | None:
    """The person of that name; None for "". Raises CommandError for somebody who is no staff."""
    if not username:
        return None
    user = User.objects.filter(username=username, is_active=True, is_staff=True).first()
    if user is None:
        raise CommandError(f"There is no active member of staff called {username!r}. {done}")
    return user
