"""Stripe's form encoding (`metadata[order]=1`, `types[]=x`) and the checks on single parameters."""

import re
from typing import Any
from urllib.parse import parse_qsl

from .errors import StripeError, invalid

Params = dict[str, Any]

_NAME = re.compile(r"^([^\[\]]+)((?:\[[^\[\]]*\])*)$")
_PART = re.compile(r"\[([^\[\]]*)\]")
_INTEGER = re.compile(r"^-?[0-9]+$")

METADATA_KEYS_MAX = 50
METADATA_KEY_CHARACTERS_MAX = 40
METADATA_VALUE_CHARACTERS_MAX = 500


def decode(text: str) -> Params:
    """`a[b]=1&c[]=2` as `{"a": {"b": "1"}, "c": ["2"]}`. All values stay text."""
    params: Params = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        match = _NAME.match(name)
        if match is None:
            raise invalid(f"Invalid parameter name: {name}", param=name)
        if match[2]:
            _place(params, [match[1], *_PART.findall(match[2])], value)
        else:
            params[name] = value
    return {name: _lists(value) for name, value in params.items()}


def _place(into: Params, names: list[str], value: str) -> None:
    *outer, last = names
    for name in outer:
        inner = into.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = into[name] = {}
        into = inner
    into[last or str(len(into))] = value


def _lists(value: Any) -> Any:
    """`c[]=2` and `c[0]=2` mean the same list."""
    if not isinstance(value, dict):
        return value
    made = {name: _lists(inner) for name, inner in value.items()}
    return list(made.values()) if list(made) == [str(n) for n in range(len(made))] else made


def missing(name: str) -> StripeError:
    return StripeError(
        status=400,
        code="parameter_missing",
        param=name,
        message=f"Missing required param: {name}.",
    )


def required(params: Params, *names: str) -> None:
    for name in names:
        if name not in params:
            raise missing(name)


def check_names(params: Params, allowed: frozenset[str]) -> None:
    for name in params:
        if name not in allowed and name != "expand":
            raise invalid(
                f"Received unknown parameter: {name}", param=name, code="parameter_unknown"
            )


def integer(params: Params, name: str, *, minimum: int, maximum: int | None = None) -> int | None:
    if name not in params:
        return None
    text = params[name]
    if not isinstance(text, str) or not _INTEGER.match(text) or len(text) > 18:
        raise invalid(f"Invalid integer: {text}", param=name, code="parameter_invalid_integer")
    value = int(text)
    if value < minimum:
        raise invalid(
            f"This value must be greater than or equal to {minimum}.",
            param=name,
            code="parameter_invalid_integer",
        )
    if maximum is not None and value > maximum:
        raise invalid(
            f"This value must be less than or equal to {maximum}.",
            param=name,
            code="parameter_invalid_integer",
        )
    return value


def boolean(params: Params, name: str) -> bool | None:
    if name not in params:
        return None
    if params[name] not in ("true", "false"):
        raise invalid(f"Invalid boolean: {params[name]}", param=name)
    return bool(params[name] == "true")


def text(params: Params, name: str) -> str | None:
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid("Invalid string", param=name)
    if value == "":
        raise StripeError(
            status=400,
            code="parameter_invalid_empty",
            param=name,
            message=(
                f"You passed an empty string for '{name}'. We assume empty values are an "
                f"attempt to unset a parameter; however '{name}' cannot be unset. You should "
                f"remove '{name}' from your request or supply a non-empty value."
            ),
        )
    return value


def choice(params: Params, name: str, choices: tuple[str, ...]) -> str | None:
    value = params.get(name)
    if value is not None and value not in choices:
        listed = ", ".join(choices[:-1]) + f", or {choices[-1]}"
        raise invalid(f"Invalid {name}: must be one of {listed}", param=name)
    return value


def metadata(params: Params) -> dict[str, str] | None:
    """The sent metadata; an empty value asks to remove that key. None: not sent."""
    sent = params.get("metadata")
    if sent is None:
        return None
    if sent == "":
        return {}
    if isinstance(sent, list):  # metadata[0]=x is a legal key that looks like a list
        sent = {str(n): value for n, value in enumerate(sent)}
    if not isinstance(sent, dict):
        raise invalid("Invalid object", param="metadata")
    if len(sent) > METADATA_KEYS_MAX:
        raise invalid(f"Metadata can have up to {METADATA_KEYS_MAX} keys.", param="metadata")
    for key, value in sent.items():
        if not isinstance(value, str):
            raise invalid(f"Metadata values must be strings ({key}).", param=f"metadata[{key}]")
        if len(key) > METADATA_KEY_CHARACTERS_MAX:
            raise invalid(
                f"Metadata keys can have up to {METADATA_KEY_CHARACTERS_MAX} characters: {key}",
                param="metadata",
            )
        if len(value) > METADATA_VALUE_CHARACTERS_MAX:
            raise invalid(
                f"Metadata values can have up to {METADATA_VALUE_CHARACTERS_MAX} characters, but "
                f"you passed in a value that is {len(value)} characters.",
                param=f"metadata[{key}]",
            )
    return dict(sent)


def merged_metadata(old: dict[str, str], sent: dict[str, str] | None) -> dict[str, str]:
    return {key: value for key, value in (old | (sent or {})).items() if value != ""}


def time_range(params: Params, name: str) -> dict[str, int]:
    """`created[gte]=1&created[lt]=2` as `{"gte": 1, "lt": 2}`; `created=1` as `{"eq": 1}`."""
    sent = params.get(name)
    if sent is None:
        return {}
    if isinstance(sent, str):
        sent = {"eq": sent}
    if not isinstance(sent, dict):
        raise invalid("Invalid object", param=name)
    bounds: dict[str, int] = {}
    for op, value in sent.items():
        if op not in ("gt", "gte", "lt", "lte", "eq"):
            raise invalid(
                f"Received unknown parameter: {name}[{op}]",
                param=f"{name}[{op}]",
                code="parameter_unknown",
            )
        if not isinstance(value, str) or not _INTEGER.match(value):
            raise invalid(f"Invalid integer: {value}", param=name, code="parameter_invalid_integer")
        bounds[op] = int(value)
    return bounds
