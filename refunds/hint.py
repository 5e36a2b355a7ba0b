"""Telling a worker that something may be due. The row is the queue; this may be lost.

A broker that takes connections and answers nothing must not hold a proposal, whose caller may give
up after 5 s (the shortest timeout of an MCP client that was seen): a hint has a fraction of a
second, and while the broker is away hardly anybody asks it.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from django.conf import settings

from kernel.away import Away

log = logging.getLogger(__name__)

# A broker on the same network answers within milliseconds.
TIMEOUT_SECONDS = 0.3
# While it is away one hint of a process loses some of these, and no other.
ASK_AGAIN_SECONDS = 5.0
# As many as a web process has threads, usually.
CONNECTIONS_MAX = 16

_broker = Away(ask_again_seconds=ASK_AGAIN_SECONDS)


def tell_a_worker(*, action_id: str) -> bool:
    """Put the action's id on the broker, if it answers in time; False when it surely was not told.

    Never raises. The dispatch sweep finds what this loses.
    """
    if not _broker.may_ask():
        return False
    try:
        publish(action_id)
    except Exception as error:
        # The broker's own exceptions have no common base; the row is committed and due.
        if _broker.went():
            log.warning(
                "The worker was not told of %s (%s); the sweep will find it.",
                action_id,
                type(error).__name__,
            )
        return False
    _broker.answered()
    return True


def publish(action_id: str) -> None:
    """Send the message, or raise whatever the broker's client raises, in time."""
    from refunds.tasks import dispatch_action

    with _connections(settings.CELERY_BROKER_URL).acquire(
        block=True, timeout=TIMEOUT_SECONDS
    ) as connection:
        try:
            dispatch_action.apply_async(
                (action_id,),
                connection=connection,  # type: ignore[call-arg]  # the stubs lack it
                retry=False,
            )
        except BaseException:
            # A late answer on it would be read as the answer to the next hint.
            connection.collect()
            raise


@cache
def _connections(url: str) -> Any:
    """The hints' own connections: a worker waits for messages far longer than a hint may."""
    from refunds.tasks import dispatch_action

    app = dispatch_action.app
    limits = (
        {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        if url.startswith(("redis", "unix"))
        else {"read_timeout": TIMEOUT_SECONDS, "write_timeout": TIMEOUT_SECONDS}
    )
    connection = app.connection_for_write(
        url,
        connect_timeout=TIMEOUT_SECONDS,
        transport_options={**app.conf.broker_transport_options, **limits},
    )
    return connection.Pool(CONNECTIONS_MAX)
