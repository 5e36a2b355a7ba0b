"""The way of one API request, in Stripe's order.

Authentication, rate limit, idempotency key (409, 400 or replay), parameters (refused without a
trace), execution (remembered under the key, 500 included), answer. Faults act at their stage.
"""

import base64
import binascii
import contextlib
import json
import sys
import traceback

from . import endpoints, errors, expand, forms, ids
from .call import Call
from .endpoints import Endpoint
from .errors import StripeError
from .exchange import Exchange
from .faults import Rule
from .idempotency import KEY_CHARACTERS_MAX, KeyRecord
from .messages import Answer, Request
from .store import Account, World

_FORM = "application/x-www-form-urlencoded"


def answer(world: World, request: Request) -> Answer:
    """Answer one request of the Stripe API. The answer says how it is to be delivered."""
    exchange = Exchange(world, request, ids.request())
    unreadable = _read_params(exchange)
    line = world.log.add(exchange.log_line())
    try:
        made = _answer(exchange, unreadable)
        late = world.faults.take("answer", exchange)
        if late is not None and late.kind.change is not None:
            made = late.kind.change(late.params, made, exchange)
    except ConnectionAbortedError:
        made = Answer(0, b"").sent_by("reset")
    except Exception:
        # A bug of the sandbox must not look like a scripted fault.
        traceback.print_exc(file=sys.stderr)
        made = Answer(
            500, b"sandbox bug: see its standard error", (("Content-Type", "text/plain"),)
        )
    line["account"] = exchange.account.id if exchange.account else None
    line["replayed"] = exchange.replayed
    line["status"] = made.status or None
    line["answered"] = made.delivery.kind
    return made


def _answer(exchange: Exchange, unreadable: StripeError | None) -> Answer:
    world = exchange.world
    rule = world.faults.take("arrival", exchange)
    if rule is not None and rule.kind.arrive is not None:
        instead = rule.kind.arrive(rule.params, exchange)
        if instead is not None:
            return instead
    try:
        exchange.account = account = _authenticate(exchange)
        _refuse_by_script(exchange, "auth")
        _refuse_by_script(exchange, "limiter")
        if not world.rate_limiter.allows(account.id, world.settings.rate_limit_per_second):
            raise errors.rate_limited(with_code=world.settings.rate_limit_sends_code)
        found = endpoints.find(exchange.request.method, exchange.request.path)
        if found is None:
            raise errors.unknown_url(exchange.request.method, exchange.request.path)
        endpoint, path_ids = found
        _refuse_by_script(exchange, "key")
        record = _begin_key(exchange, account)
        if record is not None and record.status is not None:
            world.stopping.wait(world.settings.latency_ms / 1000)
            return _replay(exchange, record)
        try:
            if unreadable is not None:
                raise unreadable
            forms.check_names(exchange.params, endpoint.params)
            endpoint.check(exchange.params)
        except StripeError:
            _drop(world, record)
            raise
        world.stopping.wait(world.settings.latency_ms / 1000)
        call = Call(
            world,
            account,
            exchange.request_id,
            exchange.idempotency_key,
            exchange.params,
            path_ids,
        )
        return _execute(exchange, endpoint, call, record)
    except _Refused as refused:
        return exchange.error_answer(refused.error).with_header(
            "Stripe-Should-Retry", refused.should_retry
        )
    except StripeError as error:
        return exchange.error_answer(error)


class _Refused(Exception):
    """A fault of the script refuses, and says what Stripe-Should-Retry is to be."""

    def __init__(self, error: StripeError, should_retry: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.should_retry = should_retry


def _refuse_by_script(exchange: Exchange, stage: str) -> None:
    rule = exchange.world.faults.take(stage, exchange)  # type: ignore[arg-type]
    if rule is not None and rule.kind.error is not None:
        error = rule.kind.error(rule.params, exchange)
        raise _Refused(error, _should_retry(exchange, rule, error.status))


def _should_retry(exchange: Exchange, rule: Rule | None, status: int) -> str | None:
    said = rule.params.get("should_retry") if rule else None
    return exchange.should_retry(status) if said is None else str(bool(said)).lower()


def _read_params(exchange: Exchange) -> StripeError | None:
    """Decode query or form into `exchange.params`; what is wrong there is told later, in turn."""
    request = exchange.request
    try:
        exchange.params = forms.decode(request.query)
        if request.body:
            content_type = request.headers.get("content-type", "").partition(";")[0].strip()
            if content_type != _FORM:
                raise errors.invalid(
                    "Invalid request (check that your POST content type is "
                    f"{_FORM}). If you have any questions, we can help at "
                    "https://support.stripe.com/."
                )
            exchange.params |= forms.decode(request.body.decode())
    except StripeError as error:
        return error
    except ValueError:
        return errors.invalid("Invalid request: the parameters are not UTF-8 form data.")
    return None


def _authenticate(exchange: Exchange) -> Account:
    """The account of the API key, or of Stripe-Account when that belongs to it."""
    scheme, _, credential = exchange.request.headers.get("authorization", "").partition(" ")
    api_key = credential.strip()
    if scheme.lower() == "basic":
        try:
            api_key = base64.b64decode(api_key).decode().partition(":")[0]
        except (binascii.Error, ValueError):
            api_key = ""
    elif scheme.lower() != "bearer":
        api_key = ""
    if not api_key:
        raise errors.no_key()
    exchange.api_key = api_key
    with exchange.world.lock:
        platform = exchange.world.account_by_api_key.get(api_key)
        if platform is None:
            raise errors.bad_key(api_key)
        named = exchange.request.headers.get("stripe-account")
        if named is None or named == platform.id:
            return platform
        connected = exchange.world.accounts.get(named)
        if connected is None or connected.platform != platform.id:
            raise errors.no_access(named)
        return connected


def _begin_key(exchange: Exchange, account: Account) -> KeyRecord | None:
    """The record of a POST's key: a new one in flight, or the finished first one."""
    key = exchange.idempotency_key
    if key is None or exchange.request.method != "POST":
        return None
    if len(key) > KEY_CHARACTERS_MAX:
        raise errors.invalid(f"Idempotency keys can have up to {KEY_CHARACTERS_MAX} characters.")
    world = exchange.world
    scope = account.id
    if world.settings.idempotency_scope_with_stripe_account == "platform" and account.platform:
        scope = account.platform
    fresh = KeyRecord(
        scope=scope,
        key=key,
        path=exchange.request.path,
        params=json.dumps(exchange.params, sort_keys=True),
        api_version=exchange.api_version,
        created=world.clock.now(),
        request_id=exchange.request_id,
    )
    with world.lock:
        return world.keys.begin(
            fresh,
            retention_seconds=world.settings.key_retention_seconds,
            compare_api_version=world.settings.compare_api_version,
        )


def _drop(world: World, record: KeyRecord | None) -> None:
    if record is not None:
        with world.lock:
            world.keys.drop(record)


def _replay(exchange: Exchange, record: KeyRecord) -> Answer:
    status = record.status or 500
    exchange.replayed = True
    answer = exchange.answer(
        status,
        record.body.encode(),
        Idempotent_Replayed="true",
        Original_Request=record.request_id,
    )
    return answer.with_header("Stripe-Should-Retry", exchange.should_retry(status))


def _execute(
    exchange: Exchange, endpoint: Endpoint, call: Call, record: KeyRecord | None
) -> Answer:
    world = exchange.world
    rule = world.faults.take("execution", exchange)
    if rule is not None and rule.name == "list-lags":
        call.list_lag_seconds = rule.params["seconds"]
    if rule is not None and rule.params.get("events") is False:
        call.with_events = False
    if rule is not None and rule.name == "executed-late":
        late_seconds = rule.params["hang_seconds"] + rule.params["seconds"]
        world.scheduler.at(
            world.clock.now() + late_seconds,
            lambda: _carry_out_late(exchange, endpoint, call, record),
        )
        return Answer(0, b"").sent_by("hang-reset", seconds=rule.params["hang_seconds"])
    try:
        locked = _to_lock(endpoint, call)
        if locked is None:
            status, body = _carry_out(exchange, endpoint, call, record, rule)
        else:
            with world.charge_locks.holding(
                locked, wait_seconds=world.settings.charge_lock_wait_seconds
            ):
                world.stopping.wait(world.settings.charge_lock_seconds)
                status, body = _carry_out(exchange, endpoint, call, record, rule)
    except StripeError:  # the lock was not free
        _drop(world, record)
        raise
    answer = exchange.answer(status, body.encode())
    if record is not None:
        answer = answer.with_header("Original-Request", exchange.request_id)
    return answer.with_header("Stripe-Should-Retry", _should_retry(exchange, rule, status))


def _carry_out_late(
    exchange: Exchange, endpoint: Endpoint, call: Call, record: KeyRecord | None
) -> None:
    with contextlib.suppress(ConnectionAbortedError):
        _carry_out(exchange, endpoint, call, record, None)


def _to_lock(endpoint: Endpoint, call: Call) -> str | None:
    if endpoint.to_lock is None:
        return None
    with call.world.lock:
        return endpoint.to_lock(call)


def _carry_out(
    exchange: Exchange,
    endpoint: Endpoint,
    call: Call,
    record: KeyRecord | None,
    rule: Rule | None,
) -> tuple[int, str]:
    """Execute and remember the answer, as one transaction. Returns status and body."""
    world = exchange.world
    error = rule.kind.error(rule.params, exchange) if rule and rule.kind.error else None
    with world.transaction():
        if world.stopping.is_set():
            # What executed now might miss the state file: break off instead of promising it.
            raise ConnectionAbortedError
        stored = True
        try:
            if error is not None and rule is not None and not rule.execute_first:
                raise error
            made = endpoint.execute(call)
            if error is not None:
                raise error
            made = expand.expanded(call, made)
            status, body = 200, json.dumps(made, ensure_ascii=False)
        except StripeError as problem:
            status, body, stored = problem.status, exchange.error_body(problem), problem.stored
        except Exception:
            _drop(world, record)
            raise
        if record is not None and stored:
            record.status, record.body = status, body
            world.keep_key(record)
        elif record is not None:
            world.keys.drop(record)
    return status, body
