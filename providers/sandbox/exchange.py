"""One request and everything learned about it until it is answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import StripeError
from .forms import Params
from .listing import Object
from .messages import JSON_TYPE, Answer, Request

if TYPE_CHECKING:
    from .store import Account, World

CUSTOMERS = "/v1/customers/"


@dataclass(slots=True)
class Exchange:
    world: World
    request: Request
    request_id: str
    params: Params = field(default_factory=dict)
    api_key: str | None = None
    account: Account | None = None
    fired: list[str] = field(default_factory=list)
    replayed: bool = False

    @property
    def idempotency_key(self) -> str | None:
        return self.request.headers.get("idempotency-key") or None

    @property
    def api_version(self) -> str:
        return self.request.headers.get("stripe-version") or self.world.settings.api_version

    def answer(self, status: int, body: bytes, **headers: str) -> Answer:
        """An answer with the headers Stripe puts on all of them. `Some_Name=x` is Some-Name: x."""
        made = [
            ("Content-Type", JSON_TYPE),
            ("Request-Id", self.request_id),
            ("Stripe-Version", self.api_version),
        ]
        echo = self.idempotency_key
        if echo is not None and (status < 400 or self.world.settings.echo_key_on_errors):
            made.append(("Idempotency-Key", echo))
        made.extend((name.replace("_", "-"), value) for name, value in headers.items())
        return Answer(status, body, tuple(made))

    def error_body(self, error: StripeError) -> str:
        body = error.body(
            request_id=self.request_id,
            account=self.account.id if self.account else None,
            now=self.world.clock.now(),
        )
        return json.dumps(body, ensure_ascii=False)

    def error_answer(self, error: StripeError) -> Answer:
        answer = self.answer(error.status, self.error_body(error).encode())
        return answer.with_header("Stripe-Should-Retry", self.should_retry(error.status))

    def should_retry(self, status: int) -> str | None:
        settings = self.world.settings
        said = {500: settings.should_retry_on_500, 409: settings.should_retry_on_409}.get(status)
        return None if said == "absent" else said

    # What the faults ask

    @property
    def effect_kind(self) -> str:
        """What this request makes or reads."""
        of_customer = self.request.path.startswith(CUSTOMERS)
        return "customer_balance_transaction" if of_customer else "refund"

    def target(self) -> tuple[str, str]:
        """The kind and id of what the effect is made on."""
        if self.request.path.startswith(CUSTOMERS):
            return "customer", self.request.path.removeprefix(CUSTOMERS).partition("/")[0]
        return "charge", self.charge_id()

    def charge_id(self) -> str:
        """The charge the parameters mean, or what they say if there is none."""
        named = str(self.params.get("charge") or self.params.get("payment_intent") or "")
        with self.world.lock:
            intent = self.account.get("payment_intent", named) if self.account else None
        return str(intent["latest_charge"]) if intent else named

    def effects_other_than(self, id: str | None) -> list[Object]:
        """All others of this kind in this account, oldest first, those made on others last."""
        if self.account is None:
            return []
        with self.world.lock:
            others = [e for e in self.account.table(self.effect_kind).values() if e["id"] != id]
        field, mine = self.target()
        return sorted(others, key=lambda effect: bool(effect[field] != mine))

    def log_line(self) -> dict[str, Any]:
        return {
            "at": self.world.clock.now(),
            "method": self.request.method,
            "path": self.request.path,
            "idempotency_key": self.idempotency_key,
            "account": None,
            "params": self.params,
            "request_id": self.request_id,
            "faults": self.fired,
            "replayed": False,
            "status": None,
            "answered": None,
        }
