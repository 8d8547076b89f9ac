"""A capability works if its sources are known or its probe passes; an accelerator is off without those it needs.

In an untested version of Thunder, regions are shared if it behaves as expected, and all else is off.
"""

import dis
import functools
import re
import sys
import tomllib
from dataclasses import replace
from unittest.mock import Mock

import pytest
import thunder
import torch
from models import compile_with, curve
from repository import PACKAGE
from thunder.core import interpreter, jit_ext
from thunder.extend import OperatorExecutor, get_executor

import fusioncache
from fusioncache import fusion_cache
from fusioncache.observe.record.database import RecordReader
from fusioncache.thunder_adapter import capabilities, hooks, installation, versions
from fusioncache.thunder_adapter.capabilities import (
    ACCELERATORS,
    CAPABILITIES,
    examine,
    find_off,
    list_capabilities,
)
from fusioncache.thunder_adapter.installation import list_patches
from fusioncache.thunder_hook import register_with_thunder
from fusioncache.transform import executors as executors_module

HANDLERS = interpreter._default_opcode_handler_map
X = torch.linspace(-1, 1, 6)
JIT = thunder.jit


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(installation, "accepted_capabilities", set())
    installation.uninstall()
    find_off.cache_clear()
    yield
    installation.uninstall()
    find_off.cache_clear()


def find(name):
    return next(each for each in list_capabilities() if each.name == name)


def test_each_row_of_the_table_belongs_to_a_capability():
    named = [each.patches for each in list_capabilities() if each.patches]
    assert sorted(named) == sorted(list_patches())
    assert {user for each in CAPABILITIES for user in each.users} == set(ACCELERATORS)


def list_replaceable():
    return [*map(HANDLERS.get, hooks.INSTRUCTIONS), thunder.thunder_general_jit, jit_ext.general_jit_lookaside]


def test_every_capability_is_there_and_probes_leave_everything_as_it_was():
    before = list_replaceable()
    for capability in CAPABILITIES:
        finding = examine(capability, thorough=True)
        assert finding.works, finding.problem
    assert list_replaceable() == before
    assert installation.list_installed() == () and sys.monitoring.get_tool(5) is None


def pass_on(own):
    """Returns an equivalent handler of instructions with other source code."""
    return lambda inst, /, **state: own(inst, **state)


def test_instructions_with_another_source_are_accepted_if_they_are_observed(monkeypatch):
    for name in hooks.INSTRUCTIONS:
        monkeypatch.setitem(HANDLERS, name, pass_on(HANDLERS[name]))
    finding = examine(find("observed interpreter"))
    found = [re.search(r"\[(\w+)\]", misfit)[1] for misfit in finding.misfits]
    assert finding.works and sorted(found) == sorted(hooks.INSTRUCTIONS)
    installation.install()
    assert installation.is_in_place("hooks")


@pytest.mark.parametrize("name", [each for each in hooks.INSTRUCTIONS if dis.opmap[each] < 256])  # others never occur
def test_an_instruction_that_is_not_observed_is_a_problem(monkeypatch, name):
    monkeypatch.setattr(hooks, "watch_instruction", lambda handler: handler)
    monkeypatch.setattr(hooks, "INSTRUCTIONS", (name,))
    assert f"{name} was observed 0 times" in capabilities.find_unobserved()


@pytest.mark.parametrize("maker", ["watch_functions", "watch_globals", "watch_calls"])
def test_what_is_not_observed_or_twice_is_a_problem(monkeypatch, maker):
    watch = getattr(hooks, maker)
    monkeypatch.setattr(hooks, maker, lambda own: own)
    assert "was observed 0 times" in capabilities.find_unobserved()
    monkeypatch.setattr(hooks, maker, lambda own: watch(watch(own)))
    problem = re.search(r"was observed (\d+) times, not (\d+) times", capabilities.find_unobserved() or "")
    assert problem and int(problem[1]) == 2 * int(problem[2])


def test_a_probe_that_fails_turns_accelerators_off(monkeypatch):
    monkeypatch.setitem(HANDLERS, "IS_OP", pass_on(HANDLERS["IS_OP"]))
    monkeypatch.setattr(hooks, "watch_instruction", lambda handler: handler)
    off = find_off()
    assert set(off) == {"programs", "sizes", "tracing"} and "was observed 0 times" in off["programs"]


def test_a_probe_that_raises_is_a_problem():
    failing = replace(find("list of entries"), probe=lambda: 1 / 0)
    assert examine(failing, thorough=True).problem == "a probe fails: ZeroDivisionError: division by zero"


def test_without_a_probe_another_source_is_a_problem(monkeypatch):
    name = "_maybe_update_proxy_name"
    own = getattr(jit_ext, name)
    monkeypatch.setattr(jit_ext, name, lambda *args, **options: own(*args))
    assert find_off() == {"sizes": "thunder.core.jit_ext:_maybe_update_proxy_name has another source"}


@pytest.mark.parametrize(
    ("accelerator", "off"),
    [*((each, {each}) for each in ("graphs", "schedule", "sizes", "lean steps")), ("programs", {"programs", "sizes"})],
)
def test_an_accelerator_is_off_without_a_name(monkeypatch, accelerator, off):
    monkeypatch.setattr(capabilities, "find_missing", lambda of: ["thunder.gone"] if of == accelerator else [])
    assert find_off() == dict.fromkeys(off, "Thunder has no thunder.gone")


def test_entries_that_are_no_list_or_are_not_looked_through_are_a_problem(monkeypatch):
    def jit_otherwise(function, **options):
        compiled = JIT(function, **options)
        compiled._lc_cs.interpreter_cache = ()
        return compiled

    monkeypatch.setattr(thunder, "jit", jit_otherwise)
    assert capabilities.probe_cache_entries() == "the entries of a compiled function are no list"
    monkeypatch.setattr(thunder, "jit", lambda function, **options: JIT(function, cache="no caching", **options))
    assert capabilities.probe_cache_entries() == "a first call asks for interpreter, and leaves 0 entries"


def test_probes_run_where_the_version_was_not_tried(monkeypatch):
    asked = []
    watched = replace(find("list of entries"), probe=lambda: asked.append(1))
    assert examine(watched).works and not asked
    monkeypatch.setattr(versions, "TRIED", {})
    assert examine(watched).works and asked == [1]


@pytest.fixture
def unusable(untried, monkeypatch):
    """Makes Thunder a version that lacks a name with which regions are read."""
    monkeypatch.setattr(capabilities, "find_problem", lambda: "it lacks thunder.core.trace.from_trace")


def test_the_version_that_is_installed_was_tried_and_no_other(monkeypatch):
    assert capabilities.explain_limits() is None
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    assert [need for need in project["project"]["dependencies"] if "lightning-thunder" in need]
    assert thunder.__version__ in versions.TRIED
    for number in ("0.2.6+local", "0.2.6.post1", "0.2.7.dev0"):
        with monkeypatch.context() as other:
            other.setattr(thunder, "__version__", number)
            assert not versions.is_tried()
    monkeypatch.setattr(versions, "digest_sources", lambda folder: "of other sources")
    assert not versions.is_tried()
    assert f"Thunder {thunder.__version__} differs from the one that was tried" in capabilities.explain_limits()


def train(transform):
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU()) for _ in range(2)))
    compiled = thunder.jit(layers, executors=fusioncache.executors(), transforms=[transform])
    for rows in (2, 3):
        x = torch.ones(rows, 6)
        result = compiled(x)
        torch.testing.assert_close(result, layers(x))
        result.sum().backward()


def test_regions_are_shared_where_all_else_is_off(untried, monkeypatch):
    off = dict.fromkeys(ACCELERATORS, "Thunder has no thunder.core.jit_ext.JitCtx")
    for module in (capabilities, fusion_cache):
        monkeypatch.setattr(module, "find_off", lambda: off)
    installation.uninstall()
    cache = fusioncache.Cache(store=True)
    options = {"lean": "auto", "schedule": "auto", "programs": True, "graphs": True, "fast_tracing": True}
    expected = r"0.3.0.dev1 was not tried: .* does without programs, .* \(off: Thunder has no .*JitCtx\)"
    with pytest.warns(RuntimeWarning, match=expected):
        transform = fusioncache.FusionCache(cache=cache, backend="eager", sizes="auto", **options)
    train(transform)
    stats = transform.stats()
    assert stats.hits > 0 and stats.verified == stats.templates
    (reason, count), *others = stats.bypasses.items()
    assert (count, others) == (2, []) and reason == capabilities.explain_limits()
    done = (stats.programs_made, stats.programs_filled, stats.captures, stats.generalizations, dict(stats.taken_out))
    assert done == (0, 0, 0, 0, {}) and transform.graphs is None and transform.program_keeper is None
    assert not set(installation.list_installed()) & {*installation.TRACING, "stored programs", "sizes"}


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_accelerators_are_on_in_a_version_that_behaves_as_expected(untried):
    """Templates are verified first; a program is stored once all its templates are, and loaded from then on."""
    counts = []
    for _ in range(3):
        transform = fusioncache.FusionCache(cache=fusioncache.Cache(store=True), backend="eager")
        train(transform)
        stats = transform.stats()
        counts.append((stats.verified, stats.programs_made, stats.programs_loaded))
    assert counts == [(8, 0, 0), (0, 2, 0), (0, 0, 2)]
    assert "does without" not in capabilities.explain_limits()


@pytest.fixture
def asked_anew(monkeypatch):
    """Clears the cached results of checks of this Thunder for a test."""
    for name in ("find_problem", "find_missing_name"):
        monkeypatch.setattr(capabilities, name, functools.cache(getattr(capabilities, name).__wrapped__))


@pytest.mark.usefixtures("asked_anew")
def test_a_name_that_is_missing_is_a_problem(monkeypatch):
    monkeypatch.delattr(thunder.core.trace, "from_trace")
    assert capabilities.find_problem() == "it lacks thunder.core.trace.from_trace"
    assert "nothing is shared, as it lacks thunder.core.trace.from_trace" in capabilities.explain_unusable()


def add(more):
    """Returns a ``jit`` whose functions add ``more`` of their arguments to their result."""

    def jit(function, **options):
        compiled = JIT(function, **options)
        return lambda *args: compiled(*args) + more(*args)

    return jit


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(
    ("jit", "problem"),
    [
        (add(lambda *args: 1), "a small function has another result in it"),
        (add(lambda x, y: 0 * y**2 + (y - y.detach())), "another gradient"),
        (add(lambda *args: 1 / 0), "a small function fails in it: ZeroDivisionError"),
        (
            lambda function, **options: JIT(lambda *args: function(*args) * 1.0, **options),
            "its forward trace of a small function has other operations: mul, tanh, add, mul",
        ),
        (
            lambda function, executors, transforms: JIT(function, executors=executors),
            "its transforms are not given a forward trace and then a backward one",
        ),
    ],
    ids=["result", "gradient", "error", "operations", "transforms"],
)
def test_another_behaviour_is_a_problem(monkeypatch, jit, problem):
    monkeypatch.setattr(thunder, "jit", jit)
    assert problem in capabilities.find_problem()


def test_a_model_runs_and_one_warning_says_what_to_install(unusable):
    cache = fusioncache.Cache(store=False)
    with pytest.warns(RuntimeWarning, match=r"Thunder 0.3.0.dev1 .* install lightning-thunder==0.2.6") as caught:
        for _ in range(2):
            compiled, transform = compile_with(curve, "inductor", cache, recompute="residual")
            assert torch.equal(compiled(X), curve(X))
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) == 1
    (reason, count), *others = cache.stats().bypasses.items()
    assert (count, others, cache.stats().regions) == (2, [], 0) and "lightning-thunder==0.2.6" in reason
    assert dict(RecordReader().runs()[0].stats.bypasses) == {reason: 2}
    unknown = object()  # it has no attribute of a trace
    assert transform.transform_trace_post_optimization(unknown, executors_list=()) is unknown


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_our_executor_claims_nothing(unusable, monkeypatch):
    monkeypatch.setattr(thunder.extend, "_executor_map", dict(thunder.extend._executor_map))
    monkeypatch.setitem(sys.modules, "fusioncache.transform.executor", None)  # importing it fails
    registered = executors_module.register()
    assert type(registered) is OperatorExecutor and get_executor("fusioncache") is registered
    compiled = thunder.jit(curve, executors=["fusioncache"], transforms=[fusioncache.FusionCache()])
    assert torch.equal(compiled(X), curve(X))
    assert not any(symbol.sym.is_fusion for symbol in thunder.last_traces(compiled)[-1].bound_symbols)


def test_thunder_can_be_imported_whatever_our_executor_meets(monkeypatch):
    no_such_name = ImportError("cannot import name 'FusionExecutor'")
    monkeypatch.setattr(executors_module, "register", Mock(side_effect=no_such_name))
    with pytest.warns(RuntimeWarning, match="does not get to know the executor 'fusioncache': ImportError") as caught:
        register_with_thunder()
    assert caught[0].filename == __file__
