"""The client's README: its Python runs as it stands there, one block after the other."""

from __future__ import annotations

import re

import pytest

from config.development import CHECKOUT
from refunds.models import RefundAction
from tests.client.faulty_proxy import FaultyProxy


@pytest.mark.django_db(transaction=True)
def test_the_examples_of_the_readme_run(
    proxy: FaultyProxy,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REFUND_ONCE_URL", proxy.url)
    monkeypatch.setenv("REFUND_ONCE_KEY", key)
    text = (CHECKOUT / "refund_once_client/README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"__name__": "readme"}

    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)

    assert len(blocks) == 3
    states = dict(RefundAction.objects.values_list("action_id", "state"))
    assert states == {
        "refund:order-4821:request-3": "AUTHORIZED",
        "refund:order-4821:request-4": "AUTHORIZED",
    }
    said = capsys.readouterr().out
    assert "refund:order-4821:request-3 AUTHORIZED 7900" in said
    assert "Action(action_id='refund:order-4821:request-4'" in said
