"""Whole programs through Thunder on the CPU, without a compiler: the traces that the transform makes, and its passes.

Passes have one list, one signature, one way to fail, and write traces to files.
"""

import os
import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import thunder
import thunder.examine
import torch
from click.testing import CliRunner
from models import Blocks, Residual, are_same, compile_plain, compile_with, find_all_fused, find_fused, step
from store_contents import collect_warnings
from thunder.extend import OperatorExecutor

import fusioncache
from fusioncache.cli.main import main
from fusioncache.ir import Declined, Scope
from fusioncache.process.settings import PASSES
from fusioncache.transform.passes import ORDER, TraceContext, order_passes, run_passes

pytestmark = pytest.mark.usefixtures("eager_regions")


def check(model, compiled):
    """Takes a step; asserts that results are Thunder's without the transform."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 10 if isinstance(model, Residual) else 16, generator=generator)
    assert are_same(step(compiled, model, x), step(compile_plain(model), model, x))


@pytest.mark.parametrize("model_type", [Residual, Blocks])
def test_training_is_bitwise_that_of_thunder_without_it_and_traces_stay_readable(model_type, cache):
    torch.manual_seed(0)
    model = model_type(3)
    compiled, transform = compile_with(model, cache=cache)
    check(model, compiled)
    stats = transform.stats()
    assert stats.regions == len(find_all_fused(compiled)) == stats.hits + stats.misses
    assert stats.hits > 0
    assert not stats.bypasses
    for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled)):
        text = str(traces[-1])
        assert "fusioncache" in str(traces[-1]._provenance)
        for call in find_fused(traces[-1]):
            summary, _, digest = call.sym.name.rpartition("_")
            assert summary and len(digest) == 8 and int(digest, 16) >= 0
            assert f"{call.sym.name}({', '.join(argument.name for argument in call.args)})" in text


def test_the_default_cache_is_shared_and_others_are_not():
    assert fusioncache.FusionCache().cache is fusioncache.FusionCache().cache is fusioncache.default_cache()
    assert fusioncache.FusionCache(cache=fusioncache.Cache()).cache is not fusioncache.default_cache()


@pytest.mark.parametrize("backend", ["eager", "inductor", None])
def test_numbers_that_are_sizes_are_those_of_each_call(cache, backend):
    """One region takes sizes as numbers: all its tensors keep their layout, and its result has another shape."""

    def function(x):
        return x + torch.arange(0, 8).unsqueeze(0) * 2

    transforms = [fusioncache.FusionCache(cache=cache, backend=backend, jobs=0)] if backend else []
    options = {"executors": fusioncache.executors(), "transforms": transforms, "cache": "symbolic values"}
    compiled = thunder.jit(function, **options)
    for shape in ((2, 3, 8), (4, 5, 8), (1, 3, 8), (2, 1, 8), (2, 3, 8)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = compiled(x), function(x)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()
        found.sum().backward()
        assert torch.equal(x.grad, torch.ones(shape))
    regions = [call for call in find_fused(thunder.last_traces(compiled)[-1]) if len(call.args) > 2]
    assert regions, "no region takes numbers"


def test_canonicalizing_that_fails_falls_back_and_warns_once(cache, monkeypatch):
    monkeypatch.setattr("fusioncache.transform.sharing.canonicalize", lambda region: 1 / 0)
    model = Blocks(2)
    compiled, transform = compile_with(model, cache=cache)
    with collect_warnings() as messages:
        check(model, compiled)
    assert sum("stays as Thunder made it: ZeroDivisionError" in message for message in messages) == 1
    assert transform.stats().bypasses == {"failed: ZeroDivisionError": transform.stats().regions}


def test_two_templates_of_one_name_are_called_by_two_names(cache, monkeypatch):
    monkeypatch.setattr("fusioncache.cache.cache.template_name", lambda graph, key: "same")
    model = Residual(2)
    compiled, transform = compile_with(model, cache=cache)
    check(model, compiled)
    stats, calls = transform.stats(), transform.calls()
    assert not stats.bypasses and stats.templates == len({call.template.key for call in calls}) > 1
    assert {call.template.name for call in calls} == {"same"}
    assert {call.target.name for call in calls} == {"same", *(f"same_{number}" for number in range(2, len(calls) + 1))}


@pytest.mark.parametrize("function", [lambda x: torch.tanh(x) * 2, lambda x: (x + 0, torch.sin(x), torch.sin(x))])
def test_rewritten_traces_pass_thunders_own_check(function):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager")
    checked = thunder.DebugOptions(check_traces=True)
    compiled = thunder.jit(function, executors=["fusioncache"], transforms=[transform], debug_options=checked)
    x = torch.linspace(-1, 1, 6)
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    assert transform.stats().regions


def test_what_another_executor_claimed_stays_with_it():
    executor = OperatorExecutor("claims_add")
    doubled = executor.register_operator("doubled", like=thunder.torch.add, fn=lambda a, b, **_: 2 * (a + b))
    executor.register_implementation(thunder.torch.add, doubled)
    compiled = thunder.jit(lambda x: torch.tanh(x + 1), executors=[executor, "fusioncache"])
    x = torch.linspace(-1, 1, 6)
    assert torch.equal(compiled(x), torch.tanh(2 * (x + 1)))


def note(name, error=None):
    """Returns a pass that appends its name to a trace, or raises."""
    return SimpleNamespace(name=name, apply=Mock(side_effect=error or (lambda trace, context: [*trace, name])))


def run(passes, **left):
    """Returns the trace that passes make of an empty one, and their reports; with ``left`` it is a backward trace."""
    reports, context = Mock(), TraceContext(is_backward=bool(left), notes=SimpleNamespace(), from_forward=left)
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
    reports.report_unchanged.assert_called_once_with("in place")
    reports.report_failure.assert_called_once_with(f"pass {first!r}: a trace", error)
    # Unless its forward trace saved less on account of the pass.
    with pytest.raises(KeyError):
        run([note(first, error)], **{first: "saved less"})


def test_the_core_has_one_pass_and_accelerators_bring_the_others():
    def names(accelerators):
        transform = fusioncache.FusionCache(backend="eager", accelerators=accelerators)
        return tuple(each.name for each in transform.passes())

    assert names(None) == ORDER
    assert names([]) == ("saved sums", "residual streams", "templates", "agreement")


def test_the_command_prints_what_each_pass_changed(tmp_path, monkeypatch):
    def show(*arguments):
        return CliRunner().invoke(main, ["show", *arguments])

    process = tmp_path / "passes" / "20261127-105501-4711"
    monkeypatch.setattr("fusioncache.observe.trace_files.folder_of_process", lambda: process)
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    nothing = show("--passes")
    assert nothing.exit_code == 1 and "FUSIONCACHE_PASSES=1 python train.py" in nothing.output
    monkeypatch.setenv(PASSES.name, "1")
    model = Blocks(1)
    step(compile_with(model)[0], model, torch.ones(2, 16))
    shown = show("--passes").output
    heads = re.findall(r"^=== \d+\.\d (\w+) Blocks: (.*)$", shown, re.MULTILINE)
    assert ("forward", "as Thunder made it") in heads and ("backward", "after templates") in heads
    assert re.search(r"^-.*= fusioncache_?\d|^-.*= Fusion\d", shown, re.MULTILINE)
    assert re.search(r"^\+.*= \w+_[0-9a-f]{8}\(", shown, re.MULTILINE)
    assert '"trace": "' in show("--passes", "--json").output
    assert show("--passes", "abc").exit_code == show().exit_code == 2

    # Other files there are a user's.
    (process.parent / "mine").mkdir()
    folder = min(process.iterdir())
    (folder / "notes.py").touch()
    (folder / "8 folder.py").mkdir()
    os.mkfifo(folder / "9 pipe.py")
    assert show("--passes").output == shown
    (folder / "10 odd.py").write_bytes(b"\xff")
    assert "after odd\n" in show("--passes").output
