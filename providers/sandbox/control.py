"""The control API under /_sandbox/: what a test may see, set and make happen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from . import api_customers, api_disputes, api_payments, api_refunds, errors, refund_states
from .faults import FAULTS
from .listing import Object, wire
from .messages import Answer, Request
from .store import Account, World

if TYPE_CHECKING:
    from .wire import Server

Body = dict[str, Any]
PREFIX = "/_sandbox/"


class ControlError(ValueError):
    """A control call that cannot be carried out; nothing was changed."""


class Control:
    """One method for each call; its name with `-` for `_` is the path. All take and give JSON."""

    def __init__(self, world: World, server: Server) -> None:
        self._world = world
        self._server = server
        # What a call leaves to be done once its answer is out, per thread.
        self._after = threading.local()

    # Looking

    def health(self) -> Body:
        with self._world.lock:
            return {
                "ok": True,
                "now": self._world.clock.now(),
                "accounts": {
                    id: {kind: len(table) for kind, table in account.tables.items()}
                    for id, account in self._world.accounts.items()
                },
            }

    def ledger(self, payment_intent: str | None = None, account: str | None = None) -> Body:
        """Every refund that exists, and the sums per payment: the oracle of a test."""
        refunds: list[Body] = []
        payments: dict[str, Body] = {}
        with self._world.lock:
            for owner in self._world.accounts.values():
                if account is not None and owner.id != account:
                    continue
                for charge in owner.table("charge").values():
                    if payment_intent in (None, charge["payment_intent"]):
                        mine = owner.refunds_of(charge["id"])
                        refunds.extend(_ledger_line(owner, refund) for refund in mine)
                        payments[charge["payment_intent"]] = _payment_line(owner, charge, mine)
        refunds.sort(key=lambda line: line["at"])
        return {"refunds": refunds, "payments": payments}

    def credits(self, customer: str | None = None, account: str | None = None) -> Body:
        """Every transaction on a customer's balance, as on the wire: a negative amount is a credit.

        And per customer what is left of the credit, by currency: the oracle for store credit.
        """
        credits: list[Body] = []
        customers: dict[str, Body] = {}
        with self._world.lock:
            for owner in self._world.accounts.values():
                if account is not None and owner.id != account:
                    continue
                for found in owner.table("customer").values():
                    if customer in (None, found["id"]):
                        mine = api_customers.transactions_of(owner, found["id"])
                        credits.extend(_credit_line(owner, each) for each in mine)
                        customers[found["id"]] = _customer_line(owner, found)
        credits.sort(key=lambda line: line["at"])
        return {"credits": credits, "customers": customers}

    def requests(self, method: str | None = None, path: str | None = None) -> Body:
        """What reached the API, oldest first."""
        lines = self._world.log.lines()
        return {
            "requests": [
                line
                for line in lines
                if method in (None, line["method"]) and path in (None, line["path"])
            ]
        }

    def keys(self) -> Body:
        with self._world.lock:
            return {
                "keys": [
                    {
                        "scope": record.scope,
                        "key": record.key,
                        "path": record.path,
                        "created": record.created,
                        "request_id": record.request_id,
                        "status": record.status,
                    }
                    for record in self._world.keys.all()
                ]
            }

    # Faults

    def faults(
        self,
        fault: str | None = None,
        match: Body | None = None,
        times: int | None = 1,
        skip: int = 0,
        **params: Any,
    ) -> Body:
        """Without `fault`: the rules and how often they fired. With it: add a rule.

        The switches refuse-connection and connect-timeout act at once and need no request.
        """
        if fault is None:
            return {"faults": self._world.faults.rules()}
        kind = FAULTS.get(fault)
        if kind is not None and kind.stage == "switch":
            seconds = float((kind.params | params)["seconds"])
            act = self._server.down if fault == "refuse-connection" else self._server.stall
            self._after.act = lambda: act(seconds)
            return {"fault": fault, "seconds": seconds}
        return self._world.faults.add(
            fault, match=match, times=times, skip=skip, params=params
        ).as_dict()

    def faults_clear(self, id: int | None = None) -> Body:
        self._world.faults.clear(id)
        return {"faults": self._world.faults.rules()}

    def fault_kinds(self) -> Body:
        return {
            name: {
                "stage": kind.stage,
                "executed": kind.executed,
                "wire": kind.wire,
                "params": kind.params,
                "match": kind.match,
            }
            for name, kind in FAULTS.items()
        }

    def down(self, seconds: float = 1.0) -> Body:
        """Refuse all connections, these too, for a while of real time."""
        return self.faults("refuse-connection", seconds=seconds)

    # Time, settings, life

    def clock(
        self,
        advance_seconds: float | None = None,
        set: float | None = None,
        frozen: bool | None = None,
    ) -> Body:
        """Read or move the clock. What is due by then has happened when this answers."""
        world = self._world
        with world.transaction():
            if frozen is not None:
                world.clock.freeze() if frozen else world.clock.run()
            if set is not None:
                world.clock.set(float(set))
            if advance_seconds is not None:
                world.clock.advance(float(advance_seconds))
            if (frozen, set, advance_seconds) != (None, None, None):
                world.clock_changed()
        world.scheduler.run_due()
        return {
            "now": world.clock.now(),
            "offset_seconds": world.clock.offset_seconds,
            "frozen": world.clock.frozen_at is not None,
        }

    def settings(self, **changes: Any) -> Body:
        with self._world.lock:
            self._world.settings.change(**changes)
            return self._world.settings.as_dict()

    def latency(self, ms: float) -> Body:
        """A fixed delay for every API call, between the idempotency key and the execution."""
        return self.settings(latency_ms=ms)

    def reset(self) -> Body:
        self._world.reset()
        return {"ok": True}

    def prune_keys(self, older_than_seconds: float | None = None) -> Body:
        """Forget finished idempotency keys, as Stripe may after 24 hours. Default: all of them."""
        world = self._world
        with world.transaction():
            gone = world.keys.prune(now=world.clock.now(), older_than_seconds=older_than_seconds)
            for record in gone:
                world.drop_key(record)
        return {"pruned": len(gone)}

    def account(self, id: str, keys: list[str] | None = None, platform: str | None = None) -> Body:
        """Add an account with API keys, or one connected to a platform account."""
        with self._world.transaction():
            if platform is not None and platform not in self._world.accounts:
                raise ControlError(f"There is no account {platform!r}. Nothing was added.")
            account = self._world.add_account(id, api_keys=keys, platform=platform)
        return {"id": account.id, "keys": keys or [], "platform": account.platform}

    # Payments and refunds

    def payment(
        self,
        amount: int,
        currency: str = "usd",
        id: str | None = None,
        charge: str | None = None,
        payment_method: str = "pm_card_visa",
        behaviour: str | None = None,
        capture: bool = True,
        metadata: dict[str, str] | None = None,
        customer: str | None = None,
        receipt_email: str | None = None,
        account: str | None = None,
    ) -> Body:
        """A paid PaymentIntent with its charge. The same id again is answered as it is.

        `behaviour` of its refunds: succeed, pending, fail-late or requires-action; without it the
        payment method decides.
        """
        known = ("succeed", "pending", "fail-late", "requires-action")
        if behaviour not in (None, *known):
            raise ControlError(f"behaviour is one of {', '.join(known)}. Nothing was made.")
        _check_amount(amount)
        world = self._world
        with world.transaction():
            owner = self._owner(account)
            intent = owner.get("payment_intent", id) if id else None
            if intent is None:
                if customer is not None and owner.get("customer", customer) is None:
                    api_customers.new_customer(world, owner, id=customer)
                intent = api_payments.new_intent(
                    world,
                    owner,
                    id=id,
                    amount_minor=amount,
                    currency=currency.lower(),
                    capture_method="automatic_async" if capture else "manual",
                    payment_method=payment_method,
                    metadata=metadata,
                    customer=customer,
                    receipt_email=receipt_email,
                )
                api_payments.pay(world, owner, intent, behaviour=behaviour, charge_id=charge)
            elif (intent["amount"], intent["currency"]) != (amount, currency.lower()):
                raise ControlError(
                    f"{id} exists with {intent['amount']} {intent['currency']}. Nothing was "
                    "changed."
                )
            return {
                "payment_intent": wire(intent),
                "charge": wire(owner.table("charge")[intent["latest_charge"]]),
            }

    def refund_outside(
        self,
        payment: str,
        amount: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Body:
        """A refund made by hand in the dashboard: no idempotency key, by default no metadata."""
        if amount is not None:
            _check_amount(amount)
        world = self._world
        with world.transaction():
            owner, charge = self._charge(payment)
            left = charge["amount_captured"] - refund_states.live_minor(
                owner.refunds_of(charge["id"])
            )
            if amount is None:
                amount = left
            if amount > left or amount == 0:
                raise ControlError(f"{left} is left on {payment}. Nothing was refunded.")
            return wire(
                api_refunds.make(
                    world,
                    owner,
                    charge,
                    amount_minor=amount,
                    metadata=metadata or {},
                    behaviour=charge["_behaviour"],
                )
            )

    def customer(
        self,
        id: str | None = None,
        metadata: dict[str, str] | None = None,
        account: str | None = None,
    ) -> Body:
        """A customer without anything on their balance. The same id again is answered as it is."""
        world = self._world
        with world.transaction():
            owner = self._owner(account)
            found = owner.get("customer", id) if id else None
            return wire(found or api_customers.new_customer(world, owner, id=id, metadata=metadata))

    def credit_outside(
        self,
        customer: str,
        amount: int,
        currency: str = "usd",
        metadata: dict[str, str] | None = None,
        type: str = "adjustment",
    ) -> Body:
        """Store credit given by hand in the dashboard, `amount` above 0; used up, below 0."""
        _check_amount(abs(amount))
        world = self._world
        with world.transaction():
            for owner in world.accounts.values():
                found = owner.get("customer", customer)
                if found is not None:
                    return wire(
                        api_customers.make_transaction(
                            world,
                            owner,
                            found,
                            amount_minor=-amount,
                            currency=currency.lower(),
                            description=None,
                            metadata=metadata or {},
                            type=type,
                        )
                    )
        raise ControlError(f"There is no customer {customer!r}. Nothing was made.")

    def refund_status(self, refund: str, status: str, failure_reason: str | None = None) -> Body:
        """Move a refund to any status, with the events that belong to it."""
        if status not in (*refund_states.LIVE, "failed", "canceled"):
            raise ControlError(f"A refund has no status {status!r}. Nothing was changed.")
        world = self._world
        with world.transaction():
            for owner in world.accounts.values():
                found = owner.get("refund", refund)
                if found is not None:
                    refund_states.change(
                        world, owner, found, status=status, failure_reason=failure_reason
                    )
                    return wire(found)
        raise ControlError(f"There is no refund {refund!r}.")

    def settle_refund(self, refund: str) -> Body:
        return self.refund_status(refund, "succeeded")

    def fail_refund(self, refund: str, reason: str = "expired_or_canceled_card") -> Body:
        """The bank sends the money back, which can come up to about 30 days after `succeeded`."""
        return self.refund_status(refund, "failed", reason)

    def lock_charge(self, payment: str, seconds: float) -> Body:
        """Something else works on this charge: refunds of it wait and get 429 lock_timeout."""
        with self._world.lock:
            _, charge = self._charge(payment)
            self._world.charge_locks.hold_for(charge["id"], seconds)
        return {"charge": charge["id"], "seconds": seconds}

    def dispute(
        self,
        payment: str | None = None,
        status: str = "needs_response",
        amount: int | None = None,
        reason: str = "fraudulent",
        close: str | None = None,
    ) -> Body:
        """Open a dispute on `payment`, or close dispute `close` with status won, lost or
        warning_closed."""
        world = self._world
        with world.transaction():
            if close is not None:
                if status not in api_disputes.CLOSED_STATUSES:
                    raise ControlError(
                        f"A dispute is closed as {', '.join(api_disputes.CLOSED_STATUSES)}. "
                        "Nothing was changed."
                    )
                for owner in world.accounts.values():
                    found = owner.get("dispute", close)
                    if found is not None:
                        return wire(api_disputes.close_dispute(world, owner, found, status=status))
                raise ControlError(f"There is no dispute {close!r}.")
            if status not in api_disputes.OPEN_STATUSES:
                raise ControlError(
                    f"A dispute opens as {', '.join(api_disputes.OPEN_STATUSES)}. Nothing was "
                    "opened."
                )
            owner, charge = self._charge(payment or "")
            return wire(
                api_disputes.open_dispute(
                    world, owner, charge, status=status, amount_minor=amount, reason=reason
                )
            )

    def balance(
        self, available_minor: int, currency: str = "usd", account: str | None = None
    ) -> Body:
        """Set what is available, and from then on refuse (or hold) refunds that exceed it."""
        world = self._world
        with world.transaction():
            owner = self._owner(account)
            world.settings.change(enforce_balance=True)
            world.add_balance(
                owner, currency, available_minor - owner.available_minor.get(currency, 0)
            )
            return {"account": owner.id, "available_minor": dict(owner.available_minor)}

    # Webhooks

    def webhooks(
        self,
        url: str | None = None,
        secret: str | list[str] | None = None,
        types: list[str] | None = None,
        account: str | None = None,
    ) -> Body:
        """Without `url`: endpoints and attempts. With it: add an endpoint. Delay, copies, order,
        retries and pause are settings."""
        hooks = self._world.webhooks
        with self._world.lock:
            if url is not None:
                if not secret:
                    raise ControlError("A webhook endpoint needs a secret. Nothing was added.")
                secrets = [secret] if isinstance(secret, str) else list(secret)
                hooks.add(url, secrets, types, account)
            return {
                "endpoints": [
                    {"id": e.id, "url": e.url, "types": e.types, "account": e.account}
                    for e in hooks.endpoints
                ],
                "attempts": list(hooks.attempts),
            }

    def webhooks_remove(self, id: str | None = None) -> Body:
        with self._world.lock:
            self._world.webhooks.remove(id)
        return self.webhooks()

    def webhooks_redeliver(self, event: str | None = None) -> Body:
        """Send one event again, or all that were not delivered; and what a pause held back."""
        count = 0
        with self._world.transaction():
            for owner in self._world.accounts.values():
                for found in list(owner.table("event").values()):
                    if found["id"] == event or (event is None and found["_delivery"] == "failed"):
                        self._world.webhooks.requeue(owner, found)
                        count += 1
            self._world.webhooks.release()
        return {"redelivered": count}

    # The way in

    def answer(self, request: Request) -> Answer:
        """A control call over HTTP: arguments in the query or as a JSON object."""
        name = request.path.removeprefix(PREFIX).strip("/").replace("/", "-")
        if request.method == "DELETE" and name == "faults":
            name = "faults-clear"
        try:
            arguments: Body = {name: _typed(text) for name, text in parse_qsl(request.query)}
            if request.body:
                arguments |= json.loads(request.body)
        except (ValueError, TypeError):
            return _json(400, {"error": "A control call takes a JSON object. Nothing was changed."})
        return self.call(name, arguments)

    def call(self, name: str, arguments: Body) -> Answer:
        method = getattr(self, name.replace("-", "_")) if name in CALLS else None
        if method is None:
            return _json(404, {"error": f"There is no control call {name!r}."})
        self._after.act = None
        try:
            made = method(**arguments)
        except errors.StripeError as problem:
            return _json(400, {"error": problem.message})
        except (ValueError, TypeError, KeyError) as problem:
            return _json(400, {"error": f"{name}: {problem}"})
        return _json(200, made, self._after.act)

    # Finding

    def _owner(self, account: str | None) -> Account:
        owner = self._world.accounts.get(account or next(iter(self._world.accounts)))
        if owner is None:
            raise ControlError(f"There is no account {account!r}. Nothing was changed.")
        return owner

    def _charge(self, payment: str) -> tuple[Account, Object]:
        """The charge that a PaymentIntent id or a charge id means, in whichever account."""
        for owner in self._world.accounts.values():
            intent = owner.get("payment_intent", payment)
            charge = owner.get("charge", intent["latest_charge"] if intent else payment)
            if charge is not None:
                return owner, charge
        raise ControlError(f"There is no payment {payment!r}. Nothing was changed.")


CALLS = frozenset(
    name.replace("_", "-")
    for name in vars(Control)
    if not name.startswith("_") and name not in ("answer", "call")
)


def _ledger_line(owner: Account, refund: Object) -> Body:
    return {
        "id": refund["id"],
        "account": owner.id,
        "payment_intent": refund["payment_intent"],
        "charge": refund["charge"],
        "amount": refund["amount"],
        "currency": refund["currency"],
        "status": refund["status"],
        "metadata": refund["metadata"],
        "created": refund["created"],
        "at": refund["_at"],
        "idempotency_key": refund["_key"],
        "request_id": refund["_request"],
        "outside": refund["_outside"],
    }


def _credit_line(owner: Account, transaction: Object) -> Body:
    shown = ("id", "customer", "amount", "currency", "type", "description", "metadata", "created")
    return {name: transaction[name] for name in shown} | {
        "account": owner.id,
        "at": transaction["_at"],
        "idempotency_key": transaction["_key"],
        "request_id": transaction["_request"],
        "outside": transaction["_outside"],
    }


def _customer_line(owner: Account, customer: Object) -> Body:
    return {
        "account": owner.id,
        "credit": {currency: -balance for currency, balance in customer["_balances"].items()},
    }


def _payment_line(owner: Account, charge: Object, refunds: list[Object]) -> Body:
    live = [refund for refund in refunds if refund_states.is_live(refund)]
    return {
        "account": owner.id,
        "charge": charge["id"],
        "currency": charge["currency"],
        "captured": charge["amount_captured"],
        "refunds": len(refunds),
        "live_refunds": len(live),
        "refunded": refund_states.live_minor(refunds),
        "disputed": charge["disputed"],
    }


def _check_amount(amount: object) -> None:
    if type(amount) is not int or amount <= 0:
        raise ControlError(f"An amount is a positive integer, not {amount!r}. Nothing was made.")


def _typed(text: str) -> Any:
    """A value of a query: a number, true, false or null where it reads as one, else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list | str) else value


def _json(status: int, body: Body, after: Callable[[], None] | None = None) -> Answer:
    return Answer(status, json.dumps(body, ensure_ascii=False).encode(), after=after)
