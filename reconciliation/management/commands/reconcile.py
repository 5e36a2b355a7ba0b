"""`manage.py reconcile`: one sweep now, or one question to the provider about one action."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from reconciliation.check_now import check_now
from reconciliation.sweep import sweep


class Command(BaseCommand):
    """Reads the provider and settles what the evidence settles. Never sends a refund."""

    help = "Move on everything that is due, now; or ask the provider about one action."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--action", metavar="ID", help="ask about this action, in any state")
        parser.add_argument(
            "--by", default=getpass.getuser(), help="who asks, for the history (default: you)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] is None:
            self.stdout.write(f"A sweep came through and moved {sweep()} actions on.")
            return
        checked = check_now(action_id=options["action"], actor=f"person:{options['by']}"[:80])
        if not checked.state:
            raise CommandError(checked.sentence)
        self.stdout.write(f"{checked.action_id}: {checked.sentence}")
