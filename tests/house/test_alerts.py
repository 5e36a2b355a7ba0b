"""docs/alerts.yml: every rule reads a metric that exists, by labels that it has.

There is no PromQL here, so a rule is held to the few forms that the file needs; a form that is
none of them fails, and whoever adds it looks twice.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from django.db.models import TextChoices
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from agents.models import SecurityEvent
from config.development import CHECKOUT
from effects.clock import database_now
from effects.models import Breaker, Case, Switch
from effects.states import State

PAGE = CHECKOUT / "docs" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(PAGE.read_text())["groups"] for rule in group["rules"]
]

_SELECTOR = r"(?P<metric>[a-z_]+)(?:\{(?P<matchers>[^{}]*)\})?"
_NUMBER = r"\d+(?:\.\d+)?(?: \* \d+)*"
_LIMIT = rf"{_NUMBER}(?: \* scalar\(max\((?P<limit>[a-z_]+)\)\))?"
_FORMS = (
    re.compile(rf"absent\({_SELECTOR}\)"),
    re.compile(rf"max(?: by \((?P<by>[a-z_, ]+)\) )?\({_SELECTOR}\) > {_LIMIT}"),
)
_MATCHER = re.compile(r'(?P<label>[a-z_]+)(?P<how>=|!=|=~)"(?P<value>[^"]+)"')
_DURATION = re.compile(r"\d+[mh]")


@pytest.fixture
def exported(db: None) -> dict[str, set[str]]:
    """The labels of every metric, as a scrape of a house with one of everything tells them."""
    now = database_now()
    Switch.objects.create(scope="global", reason="drill", set_by="x", set_at=now)
    Breaker.objects.create(account="stripe:", open_until=now.replace(year=now.year + 1))
    text = Client().get("/metrics").content.decode()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def known_values(metric: str, label: str) -> set[str]:
    choices: dict[str, type[TextChoices]] = {"kind": Case.Kind, "state": State}
    if metric == "refund_once_security_events":
        choices["kind"] = SecurityEvent.Kind
    if label in choices:
        return set(choices[label].values)
    return {"level": {"1", "2"}, "queue": {"approvals", "cases"}}[label]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_reads_what_is_exported(rule: dict[str, Any], exported: dict[str, set[str]]) -> None:
    form = next(filter(None, (form.fullmatch(rule["expr"]) for form in _FORMS)), None)
    assert form is not None, rule["expr"]
    parts = form.groupdict()
    labels = exported[parts["metric"]]
    by = re.split(", ?", parts["by"]) if parts.get("by") else []
    assert set(by) <= labels
    for text in filter(None, (parts["matchers"] or "").split(",")):
        matcher = _MATCHER.fullmatch(text)
        assert matcher is not None, text
        assert matcher["label"] in labels
        assert set(matcher["value"].split("|")) <= known_values(parts["metric"], matcher["label"])
    if parts.get("limit"):
        assert exported[parts["limit"]] == set()
    named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert named <= set(by)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_how_urgent_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert "for" not in rule or _DURATION.fullmatch(rule["for"])


def test_no_two_rules_have_one_name_and_the_page_for_people_names_each() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    told = (CHECKOUT / "docs" / "operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in told] == []
