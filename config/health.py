"""/healthz: the process answers. /readyz: it can do its work; the broker is only a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F
from django.db.models.functions import Extract
from django.http import HttpRequest, HttpResponseBase, JsonResponse

from effects.clock import DatabaseNow
from effects.models import SweepRun


def healthz(request: HttpRequest) -> JsonResponse:
    """200 as long as this process answers. For restarts: it touches nothing else."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers and every migration is applied, else 503. For routing traffic.

    `last_sweep_seconds_ago` is shown and changes nothing: a proposal is recorded safely while the
    beat, the broker or every worker is away. What to do about it: docs/operations.md.
    """
    problems = {}
    shown: dict[str, Any] = {}
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if plan:
            problems["migrations"] = f"{len(plan)} not applied; run: python manage.py migrate"
        else:
            age = Extract(DatabaseNow() - F("finished_at"), "epoch")
            shown["last_sweep_seconds_ago"] = {
                name: round(float(seconds), 1)
                for name, seconds in SweepRun.objects.order_by("name").values_list("name", age)
            }
    except DatabaseError:
        # The driver's words may hold host and user names: they go to the log of the request, not to
        # the caller.
        problems["database"] = "not reachable"
    if problems:
        return JsonResponse({"status": "not ready", "problems": problems}, status=503)
    return JsonResponse({"status": "ok", **shown})


def answer_health_first(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware that answers both, by whatever host name or address they are asked.

    A container's check asks 127.0.0.1 and an orchestrator asks an address it has just given out;
    neither stands in ALLOWED_HOSTS.
    """
    views = {"/healthz": healthz, "/readyz": readyz}

    def middleware(request: HttpRequest) -> HttpResponseBase:
        return views.get(request.path_info, get_response)(request)

    return middleware
