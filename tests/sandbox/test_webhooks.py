"""Webhooks: real signatures, retries, and on demand late, doubled, reordered."""

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import stripe

from providers.sandbox import Sandbox

from .calls import paid, refund, stripe_client

SECRET = "whsec_current"
OLD_SECRET = "whsec_previous"
REFUND_EVENTS = ["refund.created"]


class Receiver:
    """A webhook endpoint that keeps what it got and answers `statuses`, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, str]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((body, self.headers["Stripe-Signature"]))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/webhooks/stripe"

    def events(self, secret: str = SECRET) -> list[stripe.Event]:
        return [
            stripe.Webhook.construct_event(body, signature, secret) for body, signature in self.got
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


def test_a_delivery_is_signed_so_that_the_sdk_accepts_it(
    sandbox: Sandbox, client: stripe.StripeClient, receiver: Receiver
) -> None:
    payment = paid(sandbox)
    sandbox.webhook(receiver.url, [SECRET, OLD_SECRET])
    made = refund(client, payment)
    wait_until(lambda: len(receiver.got) == 2)
    for secret in (SECRET, OLD_SECRET):
        first, second = receiver.events(secret)
        assert (first.type, second.type) == ("refund.created", "charge.refunded")
        assert first.data.object["id"] == made.id
        assert second.data.object["amount_refunded"] == 2500
    with pytest.raises(stripe.SignatureVerificationError):
        receiver.events("whsec_of_somebody_else")


def test_a_refused_delivery_is_tried_again_with_a_new_signature(
    sandbox: Sandbox, client: stripe.StripeClient, receiver: Receiver
) -> None:
    payment = paid(sandbox)
    sandbox.settings(webhook_retry_delays_seconds=[60, 3600])
    receiver.statuses = [500, 302]
    sandbox.webhook(receiver.url, SECRET, types=REFUND_EVENTS)
    refund(client, payment)
    for tries in (1, 2, 3):
        wait_until(lambda: len(sandbox.call("webhooks")["attempts"]) == tries)  # noqa: B023
        if tries < 3:
            undelivered = client.v1.events.list({"delivery_success": False}).data
            assert [event.type for event in undelivered] == REFUND_EVENTS
            sandbox.advance(4000)
    assert len({event.id for event in receiver.events()}) == 1
    assert client.v1.events.list({"delivery_success": False}).data == []


def test_after_the_last_try_an_event_can_be_sent_again_by_hand(
    sandbox: Sandbox, client: stripe.StripeClient, receiver: Receiver
) -> None:
    payment = paid(sandbox)
    sandbox.settings(webhook_retry_delays_seconds=[])
    receiver.statuses = [503]
    sandbox.webhook(receiver.url, SECRET, types=REFUND_EVENTS)
    refund(client, payment)
    wait_until(lambda: len(sandbox.call("webhooks")["attempts"]) == 1)
    sandbox.call("webhooks-redeliver")
    wait_until(lambda: len(receiver.got) == 2)


def test_deliveries_can_come_twice_and_in_reverse(
    sandbox: Sandbox, client: stripe.StripeClient, receiver: Receiver
) -> None:
    payment = paid(sandbox)
    sandbox.settings(webhooks_paused=True, webhook_copies=2, webhook_order="reversed")
    sandbox.webhook(receiver.url, SECRET)
    refund(client, payment)
    time.sleep(0.1)
    assert receiver.got == []
    sandbox.settings(webhooks_paused=False)
    sandbox.call("webhooks-redeliver")
    wait_until(lambda: len(receiver.got) == 4)
    kinds = [event.type for event in receiver.events()]
    assert kinds == ["charge.refunded"] * 2 + ["refund.created"] * 2


def test_deliveries_can_be_late(
    sandbox: Sandbox, client: stripe.StripeClient, receiver: Receiver
) -> None:
    payment = paid(sandbox)
    sandbox.settings(webhook_delay_seconds=600)
    sandbox.webhook(receiver.url, SECRET, types=REFUND_EVENTS)
    refund(client, payment)
    time.sleep(0.1)
    assert receiver.got == []
    sandbox.advance(601)
    wait_until(lambda: len(receiver.got) == 1)


def test_the_next_run_delivers_what_the_last_one_could_not(
    tmp_path: Path, receiver: Receiver
) -> None:
    state = tmp_path / "state.jsonl"
    with Sandbox(state=state) as first:
        payment = paid(first)
        first.webhook("http://127.0.0.1:1/nobody", SECRET, types=REFUND_EVENTS)
        refund(stripe_client(first), payment)
        wait_until(lambda: len(first.call("webhooks")["attempts"]) == 1)
    second = Sandbox(state=state)
    second.webhook(receiver.url, SECRET, types=REFUND_EVENTS)
    with second:
        wait_until(lambda: len(receiver.got) == 1)
        client = stripe_client(second)
        wait_until(lambda: not client.v1.events.list({"delivery_success": False}).data)
    with Sandbox(state=state) as third:
        assert not stripe_client(third).v1.events.list({"delivery_success": False}).data


def test_an_unreachable_endpoint_is_an_undelivered_event(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    sandbox.settings(webhook_retry_delays_seconds=[])
    sandbox.webhook("http://127.0.0.1:1/nobody", SECRET)
    refund(client, payment)
    wait_until(lambda: len(sandbox.call("webhooks")["attempts"]) == 2)
    assert "ConnectionRefusedError" in sandbox.call("webhooks")["attempts"][0]["error"]
    assert len(client.v1.events.list({"delivery_success": False}).data) == 2
