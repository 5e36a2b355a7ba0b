"""`python -m providers.sandbox`: the sandbox as a process of its own."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from .handle import Sandbox
from .settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m providers.sandbox",
        description="A stateful fake Stripe over real HTTP. See providers/sandbox/README.md.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="write the port here when ready")
    parser.add_argument("--state", type=Path, help="keep everything in this file across runs")
    parser.add_argument("--webhook-url", help="deliver all events here")
    parser.add_argument(
        "--webhook-secret",
        default=os.environ.get("SANDBOX_WEBHOOK_SECRET"),
        help="sign them with this; or SANDBOX_WEBHOOK_SECRET, which no list of processes shows",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting"
    )
    parser.add_argument(
        "--account", action="append", default=[], metavar="ID=API_KEY", help="add an account"
    )
    given = parser.parse_args()
    if bool(given.webhook_url) != bool(given.webhook_secret):
        parser.error("--webhook-url and --webhook-secret belong together")
    settings = Settings()
    try:
        settings.change(**dict(_pair(text) for text in given.set))
        more = os.environ.get("SANDBOX_ACCOUNTS", "").split(",")
        accounts = [_pair(text) for text in (*given.account, *more) if text]
    except ValueError as problem:
        parser.error(str(problem))
    try:
        sandbox = Sandbox(host=given.host, port=given.port, state=given.state, settings=settings)
    except OSError as problem:
        print(  # noqa: T201
            f"The sandbox cannot listen on {given.host}:{given.port} ({problem.strerror}). Nothing "
            "was started. Free the port, or choose --port 0.",
            file=sys.stderr,
        )
        return 1
    for account, api_key in accounts:
        sandbox.call("account", id=account, keys=[api_key])
    if given.webhook_url:
        sandbox.webhook(given.webhook_url, given.webhook_secret)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with sandbox:
        if given.port_file:
            # Renamed into place: who waits for the file never reads half of it.
            beside = given.port_file.with_name(given.port_file.name + ".new")
            beside.write_text(f"{sandbox.port}\n")
            os.replace(beside, given.port_file)
        print(f"sandbox listening on {sandbox.url}", flush=True)  # noqa: T201
        ended.wait()
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
