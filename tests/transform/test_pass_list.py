"""Passes: one list, one signature, one way to fail; and the traces that they leave behind in files."""

import re
from types import SimpleNamespace

import pytest
import thunder
import torch

import fusioncache
from fusioncache.ir import Declined, Scope
from fusioncache.process.settings import PASSES
from fusioncache.transform.passes import ORDER, TraceContext, order_passes, run_passes


class Note:
    """A pass that writes its name behind a trace, or raises."""

    def __init__(self, name, error=None):
        self.name, self.error = name, error

    def apply(self, trace, context):
        if self.error:
            raise self.error
        return [*trace, self.name]


class Reports:
    def __init__(self):
        self.left, self.failed = [], []

    def report_left(self, reason):
        self.left.append(reason)

    def report_failure(self, what, error):
        self.failed.append((what, type(error)))


def make_context(**left):
    return TraceContext(is_backward=bool(left), notes=SimpleNamespace(), left=left)


def test_passes_run_in_the_order_of_the_list():
    passes = order_passes([Note(name) for name in reversed(ORDER)])
    assert run_passes(passes, [], make_context(), Reports()) == list(ORDER)
    with pytest.raises(ValueError, match="not in tuple"):
        order_passes([Note("unknown")])


def test_a_pass_that_fails_or_declines_leaves_the_trace_to_the_others():
    reports, first, middle, last = Reports(), *ORDER[:3]
    passes = [Note(first, KeyError("x")), Note(middle, Declined("in place", Scope.REGION)), Note(last)]
    assert run_passes(passes, [], make_context(), reports) == [last]
    assert reports.left == ["in place"]
    assert reports.failed == [(f"pass {first!r}: a trace", KeyError)]


def test_a_backward_trace_is_not_left_without_what_its_forward_trace_needs():
    context = make_context(**{ORDER[0]: "saved less"})
    with pytest.raises(KeyError):
        run_passes([Note(ORDER[0], KeyError("x"))], [], context, Reports())


def test_the_core_has_one_pass_and_accelerators_bring_the_others():
    def names(accelerators):
        cache = fusioncache.Cache(record=False, store=False)
        transform = fusioncache.FusionCache(cache=cache, backend="eager", accelerators=accelerators)
        return tuple(each.name for each in transform.passes())

    assert names(None) == ORDER
    assert names([]) == ("saved sums", "residual streams", "templates", "agreement")


def train(directory, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(directory))
    monkeypatch.setenv(PASSES.name, "1")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend="eager", jobs=0)
    executors = [each for each in fusioncache.executors() if each.name != "nvfuser"]
    compiled = thunder.jit(model, executors=[*executors, thunder.get_executor("fusioncache")], transforms=[transform])
    compiled(torch.ones(2, 4)).sum().backward()


def test_the_command_prints_what_each_pass_changed(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from fusioncache.cli.main import main

    monkeypatch.setattr("fusioncache.observe.trace_files.folder_of_process", lambda: tmp_path / "passes" / "1")
    runner = CliRunner()
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    nothing = runner.invoke(main, ["show", "--passes"])
    assert nothing.exit_code == 1 and "FUSIONCACHE_PASSES=1 python train.py" in nothing.output
    train(tmp_path, monkeypatch)
    shown = runner.invoke(main, ["show", "--passes"]).output
    heads = re.findall(r"^=== \d+\.\d (\w+) Sequential: (.*)$", shown, re.MULTILINE)
    assert ("forward", "as Thunder made it") in heads and ("backward", "after templates") in heads
    assert re.search(r"^-.*= Fusion\d", shown, re.MULTILINE) and re.search(
        r"^\+.*= \w+_[0-9a-f]{8}\(", shown, re.MULTILINE
    )
    assert '"trace": "' in runner.invoke(main, ["show", "--passes", "--json"]).output
    assert runner.invoke(main, ["show", "--passes", "abc"]).exit_code == 2
    assert runner.invoke(main, ["show"]).exit_code == 2
