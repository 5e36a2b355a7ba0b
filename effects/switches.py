"""Kill switches: turned on and off by a person, for everything or for one part."""

from __future__ import annotations

import re
from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from effects.clock import DatabaseNow, database_now
from effects.kinds import all_kinds
from effects.models import Switch
from kernel.errors import InvalidInput
from kernel.text import is_text

REASON_CHARACTERS_MAX = 500
ACTOR_CHARACTERS_MAX = 80
_SCOPE = re.compile(
    r"global|kind:[a-z_]{1,20}|account:[a-z_]{1,40}:[A-Za-z0-9_:/-]{0,75}|agent:[A-Za-z0-9_.-]{1,80}"
)


def scopes_covering(*, effect: str, provider: str, account: str, agent: str = "") -> list[str]:
    """The scopes whose switch stops an action of this kind; `agent`: the key that proposed it."""
    scopes = ["global", f"kind:{effect}", f"account:{provider}:{account}"]
    return [*scopes, f"agent:{agent}"] if agent else scopes


def turn_on(*, scope: str, reason: str, actor: str, until: datetime | None = None) -> bool:
    """Stop what `scope` covers from being sent; False when it is stopped that long already.

    `until`: when it ends by itself; None: when somebody turns it off. `actor`: who stops it.
    A switch that is on and would end earlier is followed by the new one, without a gap.

    Holds for the next claim, and for what was claimed and is not on the wire yet. A request that is
    on the wire by then is not called back.
    Raises InvalidInput.
    """
    _require_actor(actor)
    if not _SCOPE.fullmatch(scope):
        raise InvalidInput(
            field="scope",
            reason="must be global, kind:<kind>, account:<provider>:<account> or agent:<prefix>",
        )
    part, _, name = scope.partition(":")
    kinds = [kind.name for kind in all_kinds()]
    if part == "kind" and name not in kinds:
        raise InvalidInput(
            field="scope", reason=f"there is no kind {name!r}; there is: {', '.join(kinds)}"
        )
    if not reason.strip() or not is_text(reason) or len(reason) > REASON_CHARACTERS_MAX:
        raise InvalidInput(
            field="reason", reason=f"must be text of 1 to {REASON_CHARACTERS_MAX} characters"
        )
    with transaction.atomic():
        now = database_now()
        if until is not None and until <= now:
            raise InvalidInput(field="until", reason="must be in the future")
        # The partial unique index says what "on" means; one whose time is over is still on there.
        before = (
            Switch.objects.select_for_update(no_key=True)
            .filter(scope=scope, ended_at__isnull=True)
            .first()
        )
        if before is not None:
            if before.until is None or (until is not None and until <= before.until):
                return False
            over = before.until <= now
            ended_by = "its time was over" if over else f"stopped for longer by {actor}"
            Switch.objects.filter(pk=before.pk).update(
                ended_at=now, ended_by=ended_by[:ACTOR_CHARACTERS_MAX]
            )
        # Whoever else turned it on in this moment has done it.
        Switch.objects.bulk_create(
            [Switch(scope=scope, reason=reason, set_by=actor, set_at=now, until=until)],
            ignore_conflicts=True,
        )
    return True


def turn_off(*, switch_id: int, actor: str) -> bool:
    """Let it be sent again; False when it was off already. What waits is due within seconds.

    Raises InvalidInput when nobody is named.
    """
    _require_actor(actor)
    return bool(
        Switch.objects.filter(pk=switch_id, ended_at__isnull=True).update(
            ended_at=database_now(), ended_by=actor
        )
    )


def switches_on(*, now: datetime | DatabaseNow) -> QuerySet[Switch]:
    """The switches that stop something at this time, oldest first."""
    return (
        Switch.objects.filter(ended_at__isnull=True)
        .filter(Q(until__isnull=True) | Q(until__gt=now))
        .order_by("set_at")
    )


def _require_actor(actor: str) -> None:
    """Raise InvalidInput unless this names somebody."""
    if not actor.strip() or not actor.isprintable() or len(actor) > ACTOR_CHARACTERS_MAX:
        raise InvalidInput(
            field="by",
            reason=f"must say who you are, in 1 to {ACTOR_CHARACTERS_MAX} printable characters",
        )
