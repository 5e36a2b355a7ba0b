"""`manage.py policy`: show, explain, replay, export and import policies, and the rates of a day."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from effects.clock import database_now
from kernel.errors import InvalidInput
from kernel.money import format_amount
from policies.drafts import Content, Refused, save_draft
from policies.examples import explain_examples
from policies.import_rates import FILE_BYTES_MAX, UNUSUAL_PERCENT, import_rates
from policies.models import PolicyDraft, PolicyVersion
from policies.outcome import outcome, why
from policies.parameters import Parameters
from policies.policy_file import export_version, read_file
from policies.read_parameters import read_parameters
from policies.replay import Change, Replay, count_decisions, replay
from policies.versions import in_force
from refunds.explain import explain_refund
from refunds.propose import UnknownOrder

# Two years: more than any payment can be refunded in.
DAYS_MAX = 732


class Command(BaseCommand):
    """What is asked for goes to stdout, sentences about it and progress to stderr.

    Nothing here publishes: that takes another person, in the staff site.
    """

    help = "Show, explain, replay, export and import policies; import a day's reference rates."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)

        show = verbs.add_parser("show", help="the version in force, or another one")
        show.add_argument("--version", type=int, dest="number", help="its number")

        explain = verbs.add_parser(
            "explain", help="what would be decided about a refund now, and why; nothing is recorded"
        )
        explain.add_argument("order_id", nargs="?", help="left out: about the fixed examples")
        explain.add_argument("amount_minor", nargs="?", type=int, help="in minor units: 7900")
        explain.add_argument("currency", nargs="?", help="the order's, like USD")
        explain.add_argument("reason", nargs="?", help="a reason code, like damaged")
        explain.add_argument("--proposer", default="", help="an agent key's prefix")
        explain.add_argument("--draft", type=int, help="by this draft, not the version in force")
        explain.add_argument("--json", action="store_true", help="for programs")

        again = verbs.add_parser(
            "replay", help="decide again what was decided, by the same versions or by a draft"
        )
        again.add_argument("--days", type=int, default=30, help="of the last days (default 30)")
        again.add_argument("--draft", type=int, help="by this draft")
        again.add_argument("--file", type=Path, help="by the policy in this file")

        export = verbs.add_parser("export", help="write a version as a file that people review")
        export.add_argument("--version", type=int, dest="number", help="default: that in force")
        export.add_argument("--output", type=Path, help="default: stdout")

        load = verbs.add_parser("import", help="make a draft of a file; it does not publish it")
        load.add_argument("file", type=Path)
        load.add_argument("--as", dest="username", required=True, help="whose draft it is")
        load.add_argument("--name", help="of the draft; default: the file's")

        rates = verbs.add_parser("rates", help="pin a day's reference rates")
        rates.add_argument(
            "file",
            type=Path,
            help="the European Central Bank's eurofxref-daily.xml, or CSV: day,currency,rate",
        )
        rates.add_argument(
            "--unusual-rates",
            action="store_true",
            help=f"pin also those more than {UNUSUAL_PERCENT} %% from the newest earlier day's",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options["verb"]
        wanted: dict[str, Callable[..., None]] = {
            "show": self._show,
            "explain": self._explain,
            "replay": self._replay,
            "export": self._export,
            "import": self._import,
            "rates": self._rates,
        }
        names = {
            "show": ("number",),
            "explain": (
                *("order_id", "amount_minor", "currency", "reason"),
                *("proposer", "draft", "json"),
            ),
            "replay": ("days", "draft", "file"),
            "export": ("number", "output"),
            "import": ("file", "username", "name"),
            "rates": ("file", "unusual_rates"),
        }
        wanted[verb](**{name: options[name] for name in names[verb]})

    # -- show, export, import ---------------------------------------------------------------------

    def _show(self, *, number: int | None) -> None:
        version = _version(number)
        latest = in_force()
        self.stdout.write(
            f"Version {version.number}{', in force' if version == latest else ''}, published "
            f"{version.published_at:%Y-%m-%d %H:%M} UTC by {version.published_by}"
            + (f", edited by {version.editor.get_username()}" if version.editor else "")
            + f"\nSHA-256 of its parameters: {version.parameters_hash}"
            + (f"\n{version.note}" if version.note else "")
        )
        self.stdout.write(json.dumps(version.parameters, indent=2, sort_keys=True))

    def _export(self, *, number: int | None, output: Path | None) -> None:
        version = _version(number)
        text = export_version(version)
        if output is None:
            self.stdout.write(text, ending="")
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"Nothing was written: {error}") from None
        self.stderr.write(f"Version {version.number} was written to {output}.")

    def _import(self, *, file: Path, username: str, name: str | None) -> None:
        user = User.objects.filter(username=username).first()
        if user is None:
            raise CommandError(f"There is no user {username!r}. Nothing was imported.")
        read = _policy_file(file, undone="imported")
        latest = in_force()
        base = latest.number if latest else 0
        result = save_draft(
            user=user,
            content=Content(
                name=name if name is not None else file.name,
                parameters=read.parameters,
                note=read.note,
                based_on=base,
            ),
            imported_from=file.name,
        )
        if isinstance(result, Refused):
            raise CommandError(result.sentence)
        if read.number and read.number != base:
            self.stderr.write(
                f"The file was exported from version {read.number}, and {base} is in force: look "
                "at what the draft would take back."
            )
        self.stdout.write(str(result.draft_id))
        self.stderr.write(
            f"Draft {result.draft_id} was made, edited by {username}. Nothing is in force by it: "
            "somebody else publishes it in the staff site. See what it changes with: policy "
            f"explain --draft {result.draft_id}, policy replay --draft {result.draft_id}"
        )

    # -- explain ----------------------------------------------------------------------------------

    def _explain(
        self,
        *,
        order_id: str | None,
        amount_minor: int | None,
        currency: str | None,
        reason: str | None,
        proposer: str,
        draft: int | None,
        json: bool,
    ) -> None:
        parameters = _draft(draft) if draft is not None else None
        if order_id is None:
            self._explain_examples(parameters, as_json=json)
            return
        if amount_minor is None or currency is None or reason is None:
            raise CommandError("Say all of: ORDER_ID AMOUNT_MINOR CURRENCY REASON. See --help.")
        try:
            explained = explain_refund(
                order_id=order_id,
                amount_minor=amount_minor,
                currency=currency,
                reason=reason,
                proposer=proposer,
                draft=parameters,
            )
        except InvalidInput as error:
            raise CommandError(str(error)) from None
        if isinstance(explained, UnknownOrder):
            raise CommandError(f"Order {order_id} has not been mirrored.")
        decision = explained.decision
        if json:
            self.stdout.write(
                _json(
                    {
                        "verdict": decision.verdict.name,
                        "tier": decision.tier,
                        "people": decision.people,
                        "rules": [rule.as_json() for rule in decision.rules],
                        "policy_version": explained.policy_version,
                        "draft": draft,
                        "facts": explained.facts.as_json(),
                    }
                )
            )
            return
        by = f"draft {draft}" if draft is not None else f"version {explained.policy_version}"
        self.stdout.write(f"{outcome(decision)}, by {by}: {why(decision)}")
        for rule in sorted(decision.rules, key=lambda rule: -rule.verdict):
            self.stdout.write(f"  {rule.verdict.name:<6} {rule.rule}: {rule.why}")

    def _explain_examples(self, draft: Parameters | None, *, as_json: bool) -> None:
        latest = in_force()
        before = Parameters.from_json(latest.parameters) if latest else None
        after = draft or before
        if after is None:
            raise CommandError("No policy has been published: every refund needs a person.")
        lines = explain_examples(before=before, after=after)
        if as_json:
            rows = [
                {
                    "example": line.name,
                    "amount": line.amount,
                    "in_force": line.outcome_before,
                    "draft": line.outcome_after,
                    "why": line.because,
                }
                for line in lines
            ]
            self.stdout.write(_json(rows))
            return
        for line in lines:
            told = line.outcome_after
            if line.changed:
                told = f"{line.outcome_before} -> {line.outcome_after}"
            mark = "*" if line.changed else " "
            self.stdout.write(f"{mark} {line.amount} {line.name}: {told} ({line.because})")
        if draft is not None:
            changed = sum(line.changed for line in lines)
            self.stdout.write(f"Decided otherwise: {changed} of {len(lines)} examples.")

    # -- replay -----------------------------------------------------------------------------------

    def _replay(self, *, days: int, draft: int | None, file: Path | None) -> None:
        if not 1 <= days <= DAYS_MAX:
            raise CommandError(f"--days must be from 1 to {DAYS_MAX}. Nothing was replayed.")
        if draft is not None and file is not None:
            raise CommandError("Say --draft or --file, not both. Nothing was replayed.")
        parameters = _draft(draft) if draft is not None else None
        if file is not None:
            try:
                parameters = read_parameters(_policy_file(file, undone="replayed").parameters)
            except InvalidInput as error:
                raise CommandError(f"{error}. Nothing was replayed.") from None
        since = database_now() - timedelta(days=days)
        total = count_decisions(since=since, first_only=parameters is not None)

        def told(done: int) -> None:
            self.stderr.write(f"{done} of {total} decisions")

        def each_change(change: Change) -> None:
            if parameters is None:
                self.stdout.write(_change(change))

        result = replay(since=since, draft=parameters, told=told, each_change=each_change)
        if parameters is None:
            self.stdout.write(
                f"Decisions of the last {days} days, made again by the versions they were made "
                f"with: {result.decisions}. Changed: {result.changed}."
            )
            if result.changed:
                raise CommandError(
                    "Decisions do not come out as they were recorded: the rules have changed "
                    "their meaning, or a record has. They are listed above."
                )
            return
        self._show_difference(result, days=days)

    def _show_difference(self, result: Replay, *, days: int) -> None:
        self.stdout.write(
            f"Actions of the last {days} days, by their first decision: {result.decisions}. "
            f"Decided otherwise: {result.changed}."
        )
        for each in result.sums:
            arrow = f"{each.was} -> {each.becomes or 'cannot be read'}"
            money = format_amount(each.amount_minor, each.currency)
            base = ""
            if each.base_currency and each.base_currency != each.currency:
                base = f", {format_amount(each.base_minor, each.base_currency)} by rates of the day"
            self.stdout.write(
                f"  {arrow if each.changed else f'{each.was}, as before'}: {each.count}, "
                f"{money}{base}"
                + (f" ({each.without_base} without a rate)" if each.without_base else "")
            )
        if result.largest:
            self.stdout.write("The largest changes:")
        for change in result.largest:
            self.stdout.write(f"  {_change(change)}")

    # -- rates ------------------------------------------------------------------------------------

    def _rates(self, *, file: Path, unusual_rates: bool) -> None:
        data = _bytes(file, undone="imported")
        try:
            imported = import_rates(data=data, source=file.name, unusual_allowed=unusual_rates)
        except InvalidInput as error:
            raise CommandError(f"Nothing was imported. {error}") from None
        if imported.added:
            self.stdout.write(f"Pinned {len(imported.added)}: {', '.join(imported.added)}.")
        if imported.known:
            self.stdout.write(
                f"{len(imported.known)} were there already, with the same rate."
                + ("" if imported.added else " Nothing was changed.")
            )
        if imported.differing:
            raise CommandError(
                "Pinned rates stay as they are, since decisions were made by them. These are "
                f"there with another rate: {', '.join(imported.differing)}."
            )


def _version(number: int | None) -> PolicyVersion:
    version = in_force() if number is None else PolicyVersion.objects.filter(number=number).first()
    if version is None:
        raise CommandError(
            "No policy has been published." if number is None else f"There is no version {number}."
        )
    return version


def _draft(draft_id: int) -> Parameters:
    row = PolicyDraft.objects.filter(pk=draft_id).first()
    if row is None:
        raise CommandError(f"There is no draft {draft_id}.")
    return Parameters.from_json(row.parameters)


def _policy_file(file: Path, *, undone: str) -> Any:
    try:
        return read_file(_bytes(file, undone=undone))
    except InvalidInput as error:
        raise CommandError(f"{error}. Nothing was {undone}.") from None


def _bytes(file: Path, *, undone: str) -> bytes:
    """A file's content, no more of it than could be meant."""
    try:
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"{error}. Nothing was {undone}.") from None


def _change(change: Change) -> str:
    return (
        f"{change.action_id} (decision {change.number}, {change.at:%Y-%m-%d %H:%M} UTC) "
        f"{format_amount(change.amount_minor, change.currency)}: {change.was} -> "
        f"{change.becomes or 'cannot be read'}: {change.why}"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
