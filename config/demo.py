"""`make demo`: the story this product exists for, played on the real stack.

1. A 79.00 USD refund is proposed over HTTP. The worker is killed with SIGKILL after the provider
   has committed and before anything is recorded. The lease runs out; the action is UNKNOWN;
   reconciliation finds the refund by its action id. The provider's ledger shows one refund.
2. The answer to another refund is lost and the provider cannot be read: three tries, then a
   case waits for a person.

Everything is real but the provider, which is the sandbox: Django behind gunicorn, Celery workers
and beat, Postgres, Valkey, and the stripe SDK over HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from config.processes import ServerError
from config.stack import Stack
from config.up import interrupt_on_signals, persistent_stack, watch
from kernel.money import format_amount
from providers.sandbox import SandboxClient

# Short enough to be watched. The order between them is the one that production needs, too: a boot
# check refuses any other.
DEMO_SECONDS = {
    "PROVIDER_CONNECT_TIMEOUT_SECONDS": "1",
    "PROVIDER_READ_TIMEOUT_SECONDS": "3",
    "PROVIDER_TOTAL_TIMEOUT_SECONDS": "4",
    "SUBMIT_LEASE_SECONDS": "6",
    "TASK_SOFT_TIME_LIMIT_SECONDS": "8",
    "TASK_HARD_TIME_LIMIT_SECONDS": "10",
    "BROKER_VISIBILITY_TIMEOUT_SECONDS": "20",
    "SETTLE_SECONDS": "11",
    "DISPATCH_SWEEP_SECONDS": "1",
    "RECONCILE_SWEEP_SECONDS": "1",
    "RECONCILE_DELAYS_SECONDS": "2,3,4",
    "PENDING_POLL_SECONDS": "5",
}
# How long the demo waits for one step of the story before it says that it did not happen.
STEP_SECONDS = 90.0
REVIEWER = "reviewer"


Found = TypeVar("Found")


class StoryError(Exception):
    """The story did not end as it must. What was expected and what was seen stands in the text."""


def usd(amount_minor: int) -> str:
    """An amount of the story for people: `79.00 USD`."""
    return format_amount(amount_minor, "USD")


class Teller:
    """Prints the story as a timeline: seconds since its beginning, who, what."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def chapter(self, title: str) -> None:
        """A heading; the clock of the timeline starts again."""
        self._began = time.monotonic()
        print(f"\n{self._paint('1', title)}", flush=True)

    def line(self, who: str, what: str, *, mark: str = " ") -> None:
        """One thing that happened."""
        seconds = time.monotonic() - self._began
        painted = {"x": "31", "✓": "32", "?": "33"}.get(mark, "0")
        print(f"  {seconds:6.1f} s  {who:<14} {self._paint(painted, f'{mark} {what}')}", flush=True)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code != "0" else text


class Agent:
    """What a merchant's backend does: mirror an order, propose, read. Plain HTTP."""

    def __init__(self, *, url: str, key: str) -> None:
        self.url, self.key = url, key

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One call; raises StoryError for an answer that is not 2xx."""
        request = urllib.request.Request(  # noqa: S310  # always http://127.0.0.1
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise StoryError(
                f"{method} {path} was answered {error.code}: {error.read()[:500]!r}"
            ) from error

    def exists(self, path: str) -> bool:
        """Whether a GET finds something."""
        try:
            self.call("GET", path)
        except StoryError:
            return False
        return True


def until(what: str, look: Callable[[], Found | None]) -> Found:
    """Wait for a step of the story. Raises StoryError when it does not come."""
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise StoryError(f"after {STEP_SECONDS:g} s there was still no sign of: {what}")


class Story:
    """The two chapters, on a running stack."""

    def __init__(self, *, stack: Stack) -> None:
        self.stack = stack
        self.teller = Teller()
        self.provider = SandboxClient(stack.sandbox_url)
        self.agent = Agent(url=stack.url, key=new_agent_key(stack))
        self._told: set[int] = set()

    def fresh_order(self, *, number: int, captured_minor: int) -> str:
        """An order of this name, or the next one when an earlier run used it; paid and mirrored."""
        order_id, run = str(number), 1
        while self.agent.exists(f"/api/v1/orders/{order_id}"):
            run += 1
            order_id = f"{number}-run{run}"
        payment = f"pi_demo{order_id.replace('-', '')}"
        self.provider.payment(amount=captured_minor, currency="usd", id=payment)
        self.agent.call(
            "PUT",
            f"/api/v1/orders/{order_id}",
            {
                "currency": "USD",
                "captured_minor": captured_minor,
                "payment": {"provider": "stripe", "payment_intent": payment},
                "customer": {"ref": f"customer-{order_id}", "email": "customer@example.com"},
                "placed_at": "2026-01-15T10:00:00Z",
                "source_version": 1,
            },
        )
        self.teller.line("shop", f"order {order_id}: {usd(captured_minor)} were paid")
        return order_id

    def propose(self, *, order_id: str, request_id: str, amount_minor: int) -> str:
        """Propose over HTTP, as an agent's backend does; returns the action id."""
        answer = self.agent.call(
            "POST",
            "/api/v1/refunds",
            {
                "order_id": order_id,
                "request_id": request_id,
                "amount_minor": amount_minor,
                "currency": "USD",
                "reason": "requested_by_customer",
                "note": "The customer wrote that the parcel never came.",
            },
        )
        self.teller.line(
            "agent",
            f"proposes {usd(amount_minor)} for order {order_id}, request {request_id}",
        )
        return str(answer["action_id"])

    def tell_history(self, action_id: str) -> None:
        """Print what the action's history has and was not told yet."""
        from refunds.models import RefundEvent

        events = RefundEvent.objects.filter(action__action_id=action_id).order_by("pk")
        for event in events:
            if event.pk not in self._told:
                self._told.add(event.pk)
                who = event.actor.partition(":")[0]
                what, mark = in_words(event.kind, event.data)
                self.teller.line(who, what, mark=mark)

    def wait_for_state(self, action_id: str, *states: str) -> dict[str, Any]:
        """Follow an action until it stands at one of these states."""

        def look() -> dict[str, Any] | None:
            answer: dict[str, Any] = self.agent.call("GET", f"/api/v1/refunds/{action_id}")
            # After the read, so that the history tells how it came to that state.
            self.tell_history(action_id)
            return answer if answer["state"] in states else None

        return until(f"{action_id} to become {' or '.join(states)}", look)

    def killed_after_commit(self) -> None:
        """Chapter one. The worker dies at the worst moment, and the money moves once."""
        self.teller.chapter("1. Killed after the provider committed, before anything was recorded")
        order_id = self.fresh_order(number=4821, captured_minor=20_000)
        action_id = f"refund:order-{order_id}:request-3"
        self.provider.fault(
            "hang-after-execution", match={"idempotency_key": action_id}, seconds=60
        )
        self.propose(order_id=order_id, request_id="3", amount_minor=7_900)

        def committed() -> list[dict[str, Any]]:
            self.tell_history(action_id)
            return self.refunds_of(action_id)

        until("the provider to commit the refund", committed)
        self.teller.line("provider", "has committed the refund and has not answered yet")
        self.stack.kill("worker")
        self.teller.line("worker", "SIGKILL. It wrote nothing down", mark="x")
        self.stack.restart("worker")
        self.teller.line("worker", "a new one is up; nobody told it what the old one did")
        self.wait_for_state(action_id, "UNKNOWN")
        self.teller.line("", "An agent framework would now call the tool again:")
        self.propose(order_id=order_id, request_id="3", amount_minor=7_900)
        self.teller.line("", "the answer was the same action, not a second one")
        self.wait_for_state(action_id, "SUCCEEDED")
        self.compare(action_id, amount_minor=7_900)

    def provider_cannot_be_read(self) -> None:
        """Chapter two. What evidence cannot settle ends in front of a person."""
        self.teller.chapter("2. The answer is lost, and the provider cannot be read")
        order_id = self.fresh_order(number=4822, captured_minor=9_000)
        payment = f"pi_demo{order_id.replace('-', '')}"
        action_id = f"refund:order-{order_id}:request-1"
        self.provider.fault("reset-after-execution", match={"idempotency_key": action_id})
        # The first list is the look before the send; every later one of this payment fails.
        self.provider.fault(
            "list-unreadable",
            match={"method": "GET", "params": {"payment_intent": payment}},
            skip=1,
            times=None,
        )
        self.propose(order_id=order_id, request_id="1", amount_minor=4_500)
        self.wait_for_state(action_id, "UNKNOWN")

        from effects.models import Case

        def case() -> Case | None:
            self.tell_history(action_id)
            return Case.objects.filter(action_id=action_id, closed_at__isnull=True).first()

        # As the staff reads it: an agent is told only that a person has it.
        opened = until("a case for a person", case)
        self.teller.line("case", opened.reason, mark="?")
        self.compare(action_id, amount_minor=4_500)

    def refunds_of(self, action_id: str) -> list[dict[str, Any]]:
        """The refunds of one action in the provider's own ledger."""
        return [
            refund
            for refund in self.provider.refunds()
            if refund["metadata"].get("action_id") == action_id
        ]

    def compare(self, action_id: str, *, amount_minor: int) -> None:
        """The oracle is the provider's ledger. Raises StoryError unless it shows one refund."""
        refunds = self.refunds_of(action_id)
        amounts = [refund["amount"] for refund in refunds]
        if amounts != [amount_minor]:
            raise StoryError(
                f"the provider's ledger must show one refund of {amount_minor} for {action_id}, "
                f"and shows {amounts}"
            )
        self.teller.line(
            "ledger",
            f"the provider shows exactly 1 refund of {usd(amount_minor)} ({refunds[0]['id']})",
            mark="✓",
        )


def in_words(kind: str, data: dict[str, Any]) -> tuple[str, str]:
    """One event of the history as a sentence, and the mark before it."""
    verb = kind.partition(".")[2]
    match verb:
        case "proposed":
            return f"recorded, payload frozen ({data['payload_hash'][:12]}…)", " "
        case "decided":
            return f"{data['verdict']}: {data['to']}", " "
        case "claimed":
            return f"claims it: attempt {data['attempt']}, key {data['key']}", " "
        case "succeeded":
            return f"SUCCEEDED: {data['provider_ref']}", "✓"
        case "lease_over":
            return "the lease ran out with no answer: UNKNOWN", "?"
        case "unknown":
            return f"no usable answer ({data.get('outcome', '')}): UNKNOWN", "?"
        case "looked":
            return f"reads the provider, try {data.get('try', '')}: {data.get('result', '')}", " "
        case "escalated":
            return "three tries did not settle it; polling stops", "?"
    return f"{verb.replace('_', ' ')}{' -> ' + data['to'] if 'to' in data else ''}", " "


def new_agent_key(stack: Stack) -> str:
    """Make an agent key, as an operator would, and return the secret that is shown once."""
    said = stack.manage("agent_key", "create", f"demo-{secrets.token_hex(3)}")
    found = re.search(r"ro_\w+", said)
    if found is None:
        raise StoryError(f"`manage.py agent_key create` printed no key:\n{said}")
    return found.group(0)


def new_reviewer() -> str:
    """Give the demo's reviewer a password made for this run, and return it."""
    from django.contrib.auth.models import User

    password = secrets.token_urlsafe(12)
    user, _ = User.objects.get_or_create(username=REVIEWER)
    user.is_staff = user.is_superuser = True
    user.set_password(password)
    user.save()
    return password


def play(stack: Stack) -> Story:
    """Both chapters."""
    os.environ.update({name: value for name, value in stack.env.items() if name.isupper()})
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    story = Story(stack=stack)
    story.killed_after_commit()
    story.provider_cannot_be_read()
    return story


def invite(story: Story) -> None:
    """What a person can do next, on the stack that stays up."""
    stack, password = story.stack, new_reviewer()
    now = datetime.now().astimezone().strftime("%H%M%S")
    order_id = story.fresh_order(number=4823, captured_minor=12_000)
    session = story.agent.call(
        "POST",
        "/api/v1/sessions",
        {"order_id": order_id, "request_id": "1", "expires_in_seconds": 86_400},
    )
    print(
        f"""
The case of chapter 2 waits for you:
  {stack.url}/admin/    log in as {REVIEWER} with the password {password}
  (made for this run). Open Cases, read the evidence, and press "Check now" after
  curl -s -X POST {stack.sandbox_url}/_sandbox/faults-clear -d '{{}}'
  has made the provider readable again: it finds the refund, and the case closes itself.

Propose the next refund yourself:
  curl -s {stack.url}/api/v1/refunds -H 'Authorization: Bearer {story.agent.key}' \\
    -H 'Content-Type: application/json' -d '{{"order_id": "4821", "request_id": "{now}",
    "amount_minor": 500, "currency": "USD", "reason": "damaged"}}'
  Send it twice: the second answer is the same action. The provider's own ledger:
  curl -s {stack.sandbox_url}/_sandbox/ledger

Or let a model propose it. Its tools get a session, made for order {order_id} and one request; they
choose neither. Programs that use these two, for eight agent frameworks, are in examples/:
  export REFUND_MCP_URL={stack.url}/mcp
  export REFUND_SESSION_TOKEN={session["token"]}
API: {stack.url}/api/v1/docs
""",
        flush=True,
    )


def main() -> int:
    """Play the story; stay up, or end with status 0 only if the provider's ledger agrees."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--once", action="store_true", help="end after the story")
    once = parser.parse_args().once
    interrupt_on_signals()
    try:
        with persistent_stack(env=DEMO_SECONDS | {"CASE_OWNER": REVIEWER}) as stack:
            story = play(stack)
            if once:
                return 0
            invite(story)
            print("Ctrl-C stops everything this started, and nothing else.", flush=True)
            watch(stack)
    except KeyboardInterrupt:
        return 0
    except (ServerError, StoryError) as error:
        print(f"[demo] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
