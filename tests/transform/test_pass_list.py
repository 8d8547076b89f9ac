"""Passes: one list, one signature, one way to fail; and the traces that they leave behind in files."""

import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from models import Blocks, compile_with, step
from torch import ones

import fusioncache
from fusioncache.ir import Declined, Scope
from fusioncache.process.settings import PASSES
from fusioncache.transform.passes import ORDER, TraceContext, order_passes, run_passes


def note(name, error=None):
    """Returns a pass that writes its name behind a trace, or raises."""
    return SimpleNamespace(name=name, apply=Mock(side_effect=error or (lambda trace, context: [*trace, name])))


def run(passes, **left):
    """Returns what passes make of an empty trace, and what they report; a backward trace has something left."""
    reports, context = Mock(), TraceContext(is_backward=bool(left), notes=SimpleNamespace(), left=left)
    return run_passes(passes, [], context, reports), reports


def test_passes_run_in_the_order_of_the_list():
    assert run(order_passes([note(name) for name in reversed(ORDER)]))[0] == list(ORDER)
    with pytest.raises(ValueError, match="not in tuple"):
        order_passes([note("unknown")])


def test_a_pass_that_fails_or_declines_leaves_the_trace_to_the_others():
    first, middle, last = ORDER[:3]
    error = KeyError("x")
    trace, reports = run([note(first, error), note(middle, Declined("in place", Scope.REGION)), note(last)])
    assert trace == [last]
    reports.report_left.assert_called_once_with("in place")
    reports.report_failure.assert_called_once_with(f"pass {first!r}: a trace", error)
    # Unless a backward trace lacks what its forward trace saved less of.
    with pytest.raises(KeyError):
        run([note(first, error)], **{first: "saved less"})


def test_the_core_has_one_pass_and_accelerators_bring_the_others():
    def names(accelerators):
        cache = fusioncache.Cache(record=False, store=False)
        transform = fusioncache.FusionCache(cache=cache, backend="eager", accelerators=accelerators)
        return tuple(each.name for each in transform.passes())

    assert names(None) == ORDER
    assert names([]) == ("saved sums", "residual streams", "templates", "agreement")


def test_the_command_prints_what_each_pass_changed(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from fusioncache.cli.main import main

    def show(*arguments):
        return CliRunner().invoke(main, ["show", *arguments])

    monkeypatch.setattr("fusioncache.observe.trace_files.folder_of_process", lambda: tmp_path / "passes" / "1")
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    nothing = show("--passes")
    assert nothing.exit_code == 1 and "FUSIONCACHE_PASSES=1 python train.py" in nothing.output
    monkeypatch.setenv(PASSES.name, "1")
    model = Blocks(1)
    step(compile_with(model, cache=fusioncache.Cache(record=False, store=False))[0], model, ones(2, 16))
    shown = show("--passes").output
    heads = re.findall(r"^=== \d+\.\d (\w+) Blocks: (.*)$", shown, re.MULTILINE)
    assert ("forward", "as Thunder made it") in heads and ("backward", "after templates") in heads
    assert re.search(r"^-.*= fusioncache_?\d|^-.*= Fusion\d", shown, re.MULTILINE)
    assert re.search(r"^\+.*= \w+_[0-9a-f]{8}\(", shown, re.MULTILINE)
    assert '"trace": "' in show("--passes", "--json").output
    assert show("--passes", "abc").exit_code == show().exit_code == 2
