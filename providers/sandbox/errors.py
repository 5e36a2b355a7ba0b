"""Stripe's error answers, word for word where they were recorded (README.md says which were)."""

from typing import Any


class StripeError(Exception):
    """One error answer: the HTTP status and what stands under "error" in the body.

    `stored` says whether an idempotency key remembers it. Only errors raised while an endpoint
    executes can be remembered; the pipeline never stores those of the steps before.
    """

    def __init__(
        self,
        *,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        stored: bool = True,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.stored = stored
        self.extra = extra

    def body(self, *, request_id: str, account: str | None, now: float) -> dict[str, Any]:
        error: dict[str, Any] = {}
        if self.code is not None:
            error["code"] = self.code
            error["doc_url"] = f"https://stripe.com/docs/error-codes/{self.code.replace('_', '-')}"
        error["message"] = self.message
        if self.param is not None:
            error["param"] = self.param
        if account is not None:
            error["request_log_url"] = (
                f"https://dashboard.stripe.com/{account}/test/logs/{request_id}?t={int(now)}"
            )
        error["type"] = self.type
        return {"error": error | self.extra}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> StripeError:
    return StripeError(status=400, message=message, param=param, code=code)


def missing(
    kind: str, id: str, *, param: str = "id", status: int = 404, stored: bool = True
) -> StripeError:
    return StripeError(
        status=status,
        code="resource_missing",
        param=param,
        message=f"No such {kind}: '{id}'",
        stored=stored,
    )


def no_key() -> StripeError:
    return StripeError(
        status=401,
        message=(
            "You did not provide an API key. You need to provide your API key in the "
            "Authorization header, using Bearer auth (e.g. 'Authorization: Bearer "
            "YOUR_SECRET_KEY'). See https://stripe.com/docs/api#authentication for details, or we "
            "can help at https://support.stripe.com/."
        ),
    )


def bad_key(key: str) -> StripeError:
    shown = key if len(key) <= 12 else f"{key[:8]}{'*' * (len(key) - 12)}{key[-4:]}"
    return StripeError(status=401, message=f"Invalid API Key provided: {shown}")


def no_access(account: str) -> StripeError:
    return StripeError(
        status=403,
        code="account_invalid",
        message=(
            f"The provided key does not have access to account '{account}' (or that account does "
            "not exist). Application access may have been revoked."
        ),
    )


def forbidden() -> StripeError:
    return StripeError(
        status=403,
        message="The provided key does not have the required permissions for this endpoint.",
    )


def rate_limited(*, with_code: bool) -> StripeError:
    return StripeError(
        status=429,
        code="rate_limit" if with_code else None,
        message=(
            "Request rate limit exceeded. Learn more about rate limits here "
            "https://stripe.com/docs/rate-limits."
        ),
        stored=False,
    )


def lock_timeout() -> StripeError:
    return StripeError(
        status=429,
        code="lock_timeout",
        message=(
            "This object cannot be accessed right now because another API request or Stripe "
            "process is currently accessing it. If you see this error intermittently, retry the "
            "request. If you see this error frequently and are making multiple concurrent requests "
            "to a single object, make your requests serially or at a lower rate. For more details, "
            "see https://stripe.com/docs/rate-limits#object-lock-timeouts."
        ),
        stored=False,
    )


def key_in_use(key: str) -> StripeError:
    return StripeError(
        status=409,
        code="idempotency_key_in_use",
        message=(
            "There is currently another in-progress request using this Idempotent Key (that "
            "probably means you submitted twice, and the other request is still going through): "
            f"{key}. Please try again later."
        ),
        stored=False,
    )


def key_other_params(key: str) -> StripeError:
    return StripeError(
        status=400,
        type="idempotency_error",
        message=(
            "Keys for idempotent requests can only be used with the same parameters they were "
            f"first used with. Try using a key other than '{key}' if you meant to execute a "
            "different request."
        ),
        stored=False,
    )


def key_other_path(key: str, *, first: str, now: str) -> StripeError:
    return StripeError(
        status=400,
        type="idempotency_error",
        message=(
            "Keys for idempotent requests can only be used for the same endpoint they were first "
            f"used for ('{now}' vs '{first}'). Try using a key other than '{key}' if you meant to "
            "execute a different request."
        ),
        stored=False,
    )


def unknown_url(method: str, path: str) -> StripeError:
    return StripeError(
        status=404,
        message=(
            f"Unrecognized request URL ({method}: {path}). Please see https://stripe.com/docs or "
            "we can help at https://support.stripe.com/."
        ),
    )


def internal() -> StripeError:
    return StripeError(
        status=500,
        type="api_error",
        message=(
            "An unknown error occurred. If you have any questions, we can help at "
            "https://support.stripe.com/."
        ),
    )


def external_dependency() -> StripeError:
    return StripeError(
        status=424,
        type="api_error",
        message="The request could not be completed because an external dependency failed.",
    )


def insufficient_balance(*, stored: bool) -> StripeError:
    return StripeError(
        status=400,
        message="Insufficient funds in your Stripe balance to refund this amount.",
        stored=stored,
        message_code="insufficient_balance_for_refund",
    )


def charged_back(charge: str) -> StripeError:
    return StripeError(
        status=400,
        code="charge_disputed",
        message=f"Charge {charge} has been charged back; cannot issue a refund.",
    )


def already_refunded(charge: str) -> StripeError:
    return StripeError(
        status=400,
        code="charge_already_refunded",
        message=f"Charge {charge} has already been refunded.",
    )
