"""/healthz: the process answers. /readyz: it can work. The broker is a hint and not asked."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse


def healthz(request: HttpRequest) -> JsonResponse:
    """200 as long as this process answers. For restarts: it touches nothing else."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers and is migrated, else 503. For routing traffic."""
    problems = {}
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if plan:
            problems["migrations"] = f"{len(plan)} not applied; run: python manage.py migrate"
    except DatabaseError:
        # The driver's words may hold host and user names: they go to the log of the request, not to
        # the caller.
        problems["database"] = "not reachable"
    if problems:
        return JsonResponse({"status": "not ready", "problems": problems}, status=503)
    return JsonResponse({"status": "ok"})
