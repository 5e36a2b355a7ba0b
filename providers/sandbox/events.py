"""Events: a snapshot of the object at that moment, and who asked for the change."""

import json
from typing import TYPE_CHECKING, Any

from . import errors, forms, ids, listing
from .call import Call
from .forms import Params
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

TYPES_MAX = 20


def emit(
    world: "World",
    account: "Account",
    type: str,
    obj: Object,
    *,
    call: Call | None = None,
    previous: dict[str, Any] | None = None,
) -> None:
    """Store one event and queue its deliveries. `call` None: it happened by itself."""
    if call is not None and not call.with_events:
        return
    data: dict[str, Any] = {"object": listing.wire(obj)}
    if previous is not None:
        data["previous_attributes"] = previous
    event: Object = {
        "id": ids.new("evt", ids.infix_of(obj["id"])),
        "object": "event",
        "api_version": world.settings.api_version,
        "created": int(world.clock.now()),
        # As text: a snapshot that later changes cannot reach, and small in memory.
        "_data": json.dumps(data, ensure_ascii=False),
        "livemode": False,
        "pending_webhooks": 0,
        "request": {
            "id": call.request_id if call else None,
            "idempotency_key": call.idempotency_key if call else None,
        },
        "type": type,
        "_delivery": "none",
    }
    if account.platform is not None:
        event["account"] = account.id
    world.webhooks.queue(account, event)
    world.put(account, event)


def rendered(event: Object) -> Object:
    """The event as the wire shows it."""
    shown: Object = {}
    for name, value in event.items():
        if name == "_data":
            shown["data"] = json.loads(value)
        elif not name.startswith("_"):
            shown[name] = value
    return shown


# GET /v1/events

PARAMS = listing.LIST_PARAMS | {"created", "delivery_success", "type", "types"}


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")
    forms.boolean(params, "delivery_success")
    if "type" in params and "types" in params:
        raise errors.invalid("You may only specify one of these parameters: type, types.")
    types = params.get("types", [])
    if not isinstance(types, list):
        raise errors.invalid("Invalid array", param="types")
    forms.text(params, "type")
    if not all(isinstance(each, str) for each in types):
        raise errors.invalid("Invalid array", param="types")
    if len(types) > TYPES_MAX:
        raise errors.invalid(f"You may only specify up to {TYPES_MAX} types.", param="types")


def list_all(call: Call) -> Object:
    params, table = call.params, call.account.table("event")
    bounds = forms.time_range(params, "created")
    wanted = set(params.get("types", [])) | ({params["type"]} if "type" in params else set())
    delivered = forms.boolean(params, "delivery_success")
    oldest = call.world.clock.now() - call.world.settings.events_kept_seconds
    chosen = [
        event
        for event in table.values()
        if event["created"] >= oldest
        and listing.in_range(event["created"], bounds)
        and (not wanted or _matches(event["type"], wanted))
        and (delivered is None or delivered == (event["_delivery"] in ("none", "delivered")))
    ]
    made = listing.page(chosen, params, url="/v1/events", kind="event", known=table)
    made["data"] = [rendered(table[event["id"]]) for event in made["data"]]
    return made


def retrieve(call: Call) -> Object:
    event = call.account.get("event", call.ids[0])
    oldest = call.world.clock.now() - call.world.settings.events_kept_seconds
    if event is None or event["created"] < oldest:
        raise errors.missing("event", call.ids[0])
    return rendered(event)


def _matches(type: str, wanted: set[str]) -> bool:
    """`charge.*` means all that start with `charge.`."""
    return type in wanted or any(
        name.endswith("*") and type.startswith(name[:-1]) for name in wanted
    )
