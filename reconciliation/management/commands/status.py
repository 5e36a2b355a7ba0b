"""`manage.py status`: what waits, since when, and whose turn it is."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db.models import Count

from effects import cases
from effects.clock import database_now
from effects.models import ESCALATIONS_MAX, Case, SweepRun
from effects.states import State
from effects.switches import switches_on
from reconciliation.waiting import Waiting, what_waits


class Command(BaseCommand):
    """Reads our own database only."""

    help = "Show what is not over: actions, cases, kill switches and sweeps."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--oldest", type=_count, default=10, help="how many of each are shown (default 10)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        now, oldest = database_now(), options["oldest"]
        self._actions(now, oldest)
        self._cases(now, oldest)
        for switch in switches_on(now=now):
            until = f" until {_time(switch.until)}" if switch.until else ""
            self.stdout.write(
                f"Paused: {switch.scope}{until}, by {switch.set_by} since "
                f"{_ago(now - switch.set_at)}: {switch.reason}"
            )
        for run in SweepRun.objects.order_by("name"):
            self.stdout.write(f"Sweep {run.name} came through {_ago(now - run.finished_at)} ago.")

        self._case_owners()

    def _case_owners(self) -> None:
        for variable, what in (
            ("CASE_OWNER", "cases that nobody else owns"),
            ("CASE_ESCALATION_OWNER", "cases past their due time"),
        ):
            name = getattr(settings, variable)
            if variable != "CASE_OWNER" and name == settings.CASE_OWNER:
                continue
            if cases.owned_by(name)["assignee"] is None:
                self.stdout.write(
                    f"{variable} is {name}, and there is no user of that name who can log in: "
                    f"{what} wait for nobody. Make that user, or name another one."
                )

        locked_out = (
            cases.open_and_locked_out()
            .values_list("owner")
            .annotate(n=Count("pk"))
            .order_by("owner")
        )
        for name, count in locked_out:
            self.stdout.write(
                f"{count} open case(s) belong to {name}, who cannot log in any more. Assign "
                "them to somebody else."
            )

    def _actions(self, now: datetime, oldest: int) -> None:
        crowds = what_waits(now=now, oldest_max=oldest)
        if not crowds:
            self.stdout.write("Nothing is waiting to be sent, found out or settled.")
        for crowd in crowds:
            label = State(crowd.state).value
            self.stdout.write(f"{crowd.count} {crowd.kind}(s) in {label}, the oldest first:")
            for waiting in crowd.oldest:
                self.stdout.write(f"  {_line(waiting, now=now)}")

    def _cases(self, now: datetime, oldest: int) -> None:
        open_cases = Case.objects.filter(closed_at__isnull=True).order_by("due_at")
        count = open_cases.count()
        self.stdout.write(f"{count} open case(s){', by due time:' if count else '.'}")
        for case in open_cases[:oldest]:
            late = " OVERDUE" if case.due_at < now else ""
            if case.escalations:
                late += f", escalated {case.escalations} of {ESCALATIONS_MAX} times"
            if case.snoozed_until is not None and case.snoozed_until > now:
                late += f", put off until {_time(case.snoozed_until)}"
            self.stdout.write(
                f"  {case.get_kind_display()}: {case.action_id or case.resource}, for "
                f"{_ago(now - case.opened_at)}, owner {case.owner}, due {_time(case.due_at)}{late}"
            )


def _count(text: str) -> int:
    """A number of rows. Raises ValueError for one that cannot be."""
    if int(text) < 0:
        raise ValueError(text)
    return int(text)


def _line(waiting: Waiting, *, now: datetime) -> str:
    parts = [f"{waiting.action_id}: for {_ago(now - waiting.since)}"]
    if waiting.state is State.UNKNOWN:
        parts.append(f"{waiting.tries} of 3 tries made")
    if waiting.key_age is not None:
        parts.append(f"key {_ago(waiting.key_age)} old")
    if waiting.due_at is not None:
        parts.append(f"due {_time(waiting.due_at)}")
    return f"{', '.join(parts)}. Turn: {waiting.whose_turn}."


def _ago(span: timedelta) -> str:
    seconds = max(int(span.total_seconds()), 0)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
