"""What a log line carries, and what it never does."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Generator

import pytest
import structlog
from django.test import Client

from config.logs import WITHHELD, logging_settings


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """Everything logged through the product's own set-up."""
    written = io.StringIO()
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    settings = logging_settings("INFO")
    settings["handlers"]["stderr"]["stream"] = written
    logging.config.dictConfig(settings)
    yield written
    root.handlers[:], level = before
    root.setLevel(level)


def logged(lines: io.StringIO) -> dict[str, object]:
    (line,) = lines.getvalue().splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_line_carries_the_sentence_the_machine_word_and_the_bound_ids(lines: io.StringIO) -> None:
    action_id = "refund:order-4821:request-3"
    with structlog.contextvars.bound_contextvars(request_id="r-1", action_id=action_id):
        structlog.get_logger("refunds.dispatch").info("Sent one refund.", action="refund.sent")
    line = logged(lines)
    assert line["event"] == "Sent one refund."
    assert line["action"] == "refund.sent"
    assert line["request_id"] == "r-1"
    assert line["action_id"] == action_id
    assert line["level"] == "info"


def test_a_standard_library_line_looks_the_same(lines: io.StringIO) -> None:
    logging.getLogger("refunds").info("Sent %s.", "one", extra={"action": "refund.sent"})
    line = logged(lines)
    assert (line["event"], line["action"]) == ("Sent one.", "refund.sent")


@pytest.mark.parametrize(
    "secret",
    [
        "sk_live_51Habc",
        "rk_test_51Habc",
        "whsec_abcdef",
        "Bearer ro_1234.abcdef",
        "ro_live_0123456789ab_cdef",
        "ro_session_0123456789abcdef01_cdef",
        "jane.doe+shop@example.co.uk",
        "postgresql://refund_once:hunter2@db/refund_once",
    ],
)
def test_what_looks_like_a_secret_or_an_address_is_withheld(
    lines: io.StringIO, secret: str
) -> None:
    try:
        raise RuntimeError(f"could not use {secret}")
    except RuntimeError:
        structlog.get_logger("x").exception(f"Failed with {secret}", detail={"said": [secret]})
    written = lines.getvalue()
    assert WITHHELD in written
    for part in (secret, "hunter2", "jane.doe", "51Habc"):
        assert part not in written


@pytest.mark.parametrize(
    "name", ["email", "customer_email", "api_key", "Authorization", "password", "note", "ip"]
)
def test_a_field_that_names_a_person_or_a_key_is_withheld(lines: io.StringIO, name: str) -> None:
    structlog.get_logger("x").info("Something.", **{name: "plain words"})
    assert logged(lines)[name] == WITHHELD


def test_ordinary_fields_are_kept(lines: io.StringIO) -> None:
    fields = {"amount_minor": 7900, "idempotency_key": "refund:order-1:request-1", "ip_count": 2}
    structlog.get_logger("x").info("Something.", **fields)
    assert fields.items() <= logged(lines).items() | {("ip_count", 2)}


def test_the_query_of_a_request_is_dropped(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("request_started", request="GET /api/v1/refunds?order_id=jane")
    assert logged(lines)["request"] == "GET /api/v1/refunds"


@pytest.mark.parametrize("path", ["/nowhere", "/api/v1/refunds"])
def test_what_django_itself_says_of_a_request_has_no_query(
    lines: io.StringIO, client: Client, path: str
) -> None:
    client.get(f"{path}?access_token=ro_live_1234abcd&email=jane@example.com")
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert f"GET {path}" in [line.get("request") for line in said]
    assert any(line["logger"] == "django.request" for line in said)
    for part in ("ro_live", "1234abcd", "access_token", "jane"):
        assert part not in lines.getvalue()


def test_an_object_is_filtered_as_the_text_it_is_written_as(lines: io.StringIO) -> None:
    class Caller:
        def __str__(self) -> str:
            return "jane@example.com with sk_live_51Habc"

    structlog.get_logger("x").info("Something.", detail={"who": Caller(), "all": {Caller()}})
    assert WITHHELD in lines.getvalue()
    assert "jane" not in lines.getvalue()
    assert "51Habc" not in lines.getvalue()


@pytest.mark.parametrize("refusal", ["DisallowedHost", "TooManyFieldsSent", "SuspiciousOperation"])
def test_what_a_stranger_can_make_django_refuse_is_a_warning_in_one_line(
    lines: io.StringIO, refusal: str
) -> None:
    try:
        raise ValueError("a thousand fields")
    except ValueError as error:
        logging.getLogger(f"django.security.{refusal}").error("Refused.", exc_info=error)
    line = logged(lines)
    assert (line["event"], line["level"]) == ("Refused.", "warning")
    assert "exception" not in line
    lines.truncate(0)
    lines.seek(0)
    try:
        raise ValueError("ours")
    except ValueError as error:
        logging.getLogger("django.request").error("A mistake.", exc_info=error)
    line = logged(lines)
    assert line["level"] == "error"
    assert "exception" in line
