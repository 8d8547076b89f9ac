"""The seconds of a first step behind Dynamo, all of them, and why parts of a model do not go to Thunder."""

import pytest
import torch
from behind_dynamo import OwnNet, compile_behind_dynamo

from fusioncache.transform import dynamo_account
from fusioncache.transform.dynamo_account import write_reason


@pytest.mark.parametrize("resets", [False, True])
def test_all_parts_of_a_first_call_are_measured_and_nothing_of_a_second_one(resets):
    if resets:  # Dynamo forgets who listens
        compile_behind_dynamo(OwnNet())[0](torch.ones(2, 4))
        torch._dynamo.reset()
    compiled, transform = compile_behind_dynamo(OwnNet())
    phases = []
    for _ in range(2):
        compiled(torch.ones(2, 4))
        phases.append(transform.cache.ledger.phases().to_dict())
    for name in ("dynamo", "splitting", "other_compilers", "other"):
        assert phases[0][name] == phases[1][name] > 0


def test_why_a_part_does_not_go_to_thunder_is_counted():
    compiled, transform = compile_behind_dynamo(OwnNet())
    compiled(torch.ones(2, 4))
    assert transform.stats().bypasses == {
        "not given to Thunder: sinc only has an automatic torch fallback in thunder": 1
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "node with name: x_2 and target: <built-in method addmm of type object at 0x7f> only has a fallback.",
            "addmm only has a fallback",
        ),
        ("node with name: result and target: new_ones only has a fallback.", "new_ones only has a fallback"),
        ("something else at 0x7f", "something else at 0x7f"),
    ],
)
def test_a_reason_does_not_name_what_differs_from_graph_to_graph(text, reason):
    assert write_reason(text) == f"not given to Thunder: {reason}"


def test_whatever_fails_in_the_account_the_model_runs(monkeypatch):
    monkeypatch.setattr(dynamo_account, "write_reason", lambda text: 1 / 0)
    compiled, transform = compile_behind_dynamo(OwnNet())
    assert compiled(torch.ones(2, 4)).shape == (2, 4) and not transform.stats().bypasses
