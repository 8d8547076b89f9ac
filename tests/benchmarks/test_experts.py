"""The benchmark of experts: what it asks its processes, what it makes of their answers, and that its layers agree."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.experts import __main__ as experts
from benchmarks.experts.layers import GroupedExperts, LoopedExperts
from benchmarks.experts.spec import ExpertsSpec
from benchmarks.experts.worker import make_inputs


@pytest.fixture
def calls(monkeypatch):
    """What the processes are asked. torch.compile fails."""
    found = []

    def call(module, argument, *, limit):
        found.append(argument)
        if argument["peer"] == "torch.compile":
            raise processes.ProcessFailed("RuntimeError: out of ideas", "its log")
        steps = [{"seconds": 5.0 if i == 11 else 1.0, "compiles": 2 * (i < 10), "traces": i} for i in range(13)]
        return {"steps": steps, "routed": [3, 5], "error": 1e-6}

    monkeypatch.setattr(experts, "inspect_machine", lambda backend: Machine({"gpu": None, "cpus": 2}, "cpu", "eager"))
    monkeypatch.setattr(processes, "call", call)
    return found


def test_first_steps_do_not_count(calls, tmp_path):
    file = tmp_path / "experts.json"
    options = ["--peers", "torch.compile,fusioncache,looped-eager", "--seconds", "6", "--json", str(file)]
    outcome = CliRunner().invoke(experts.main, options, catch_exceptions=False)
    assert outcome.exit_code == 1 and "torch.compile: RuntimeError: out of ideas" in outcome.stdout
    assert [argument["seconds"] for argument in calls] == [6.0, 6.0, 2.0]
    bad, good, _ = json.loads(file.read_text())["points"]
    assert bad["error_message"] and len(good["steps"]) == 13
    assert (good["median"], good["slowest"], good["later_compiles"], good["later_traces"]) == (1.0, 5.0, 0, 33)


def test_grouped_and_looped_layers_compute_the_same():
    grouped, looped = GroupedExperts(16, 32, 4), LoopedExperts(16, 32, 4)
    looped.load_state_dict(grouped.state_dict())
    with torch.no_grad():
        looped.router.weight[2] = grouped.router.weight[2] = 0.0
        x = torch.randn(5, 16)
        torch.testing.assert_close(grouped(x), looped(x))


def test_inputs_are_the_same_in_each_process_and_others_in_each_step():
    spec = ExpertsSpec("looped-eager", 1, 4, 2, 3, 3, 1.0, "eager", "cpu", "float32")
    first, again = list(make_inputs(spec)), list(make_inputs(spec))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and first[0].shape == (6, 128)
