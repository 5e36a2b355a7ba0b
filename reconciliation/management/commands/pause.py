"""`manage.py pause`: kill switches. They stop sends at once and never stop finding out."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from effects.clock import database_now
from effects.models import Switch
from effects.switches import switches_on, turn_off, turn_on
from kernel.errors import InvalidInput
from refunds.models import Order, RefundAction


class Command(BaseCommand):
    """A paused action stays where it is and goes on by itself when the switch is off."""

    help = (
        "Turn kill switches on and off. SCOPE is global, kind:refund, "
        "account:<provider>:<account> (account:stripe: is the platform's own) or agent:<prefix>."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        on = verbs.add_parser("on", help="stop sends")
        on.add_argument("scope")
        on.add_argument("--reason", required=True, help="for whoever turns it off")
        on.add_argument("--by", required=True, help="who you are")
        on.add_argument(
            "--until", type=_moment, help="when it ends by itself, like 2026-12-24T18:00+01:00"
        )
        off = verbs.add_parser("off", help="let sends go on")
        off.add_argument("scope")
        off.add_argument("--by", required=True, help="who you are")
        verbs.add_parser("list", help="what is on")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "on":
            self._on(**{name: options[name] for name in ("scope", "reason", "by", "until")})
        elif options["verb"] == "off":
            self._off(scope=options["scope"], by=options["by"])
        else:
            self._list()

    def _on(self, *, scope: str, reason: str, by: str, until: datetime | None) -> None:
        try:
            changed = turn_on(scope=scope, reason=reason, actor=by, until=until)
        except InvalidInput as error:
            raise CommandError(f"Nothing was paused. {error}") from None
        if not changed:
            switch = switches_on(now=database_now()).filter(scope=scope).first()
            how = f": {_line(switch)}" if switch else ""
            self.stdout.write(f"Nothing was changed, for it is paused already{how}")
            return
        self.stdout.write(
            f"Paused: nothing that {scope} covers is sent from now on. What is on the wire already "
            f"is not stopped; it is still found out.{_covers_nothing_yet(scope)}"
        )

    def _off(self, *, scope: str, by: str) -> None:
        switch = switches_on(now=database_now()).filter(scope=scope).first()
        try:
            changed = switch is not None and turn_off(switch_id=switch.pk, actor=by)
        except InvalidInput as error:
            raise CommandError(f"{scope} is still paused. {error}") from None
        if not changed:
            raise CommandError(f"{scope} was not paused. Nothing was changed; see: pause list")
        self.stdout.write(f"{scope} is not paused any more. What waited goes on within seconds.")

    def _list(self) -> None:
        on = list(switches_on(now=database_now()))
        if not on:
            self.stdout.write("Nothing is paused.")
        for switch in on:
            self.stdout.write(_line(switch))


def _line(switch: Switch) -> str:
    until = f" until {switch.until:%Y-%m-%d %H:%M} UTC" if switch.until else ""
    return (
        f"{switch.scope}{until}: {switch.reason} "
        f"({switch.set_by}, {switch.set_at:%Y-%m-%d %H:%M} UTC)"
    )


def _covers_nothing_yet(scope: str) -> str:
    """A sentence when no row of ours is in the scope: a wrong name would stop nothing."""
    part, _, name = scope.partition(":")
    if part == "agent" and not RefundAction.objects.filter(proposed_by=name).exists():
        return (
            f"\nNo refund was ever proposed by {name}; it is on all the same. Compare the name "
            "with `agent_key list`."
        )
    if part == "account":
        provider, _, account = name.partition(":")
        if not Order.objects.filter(provider=provider, account=account).exists():
            return f"\nNo order uses {scope}; it is on all the same. Compare the name."
    return ""


def _moment(text: str) -> datetime:
    """An ISO 8601 time; without an offset it is UTC. Raises ValueError on anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
