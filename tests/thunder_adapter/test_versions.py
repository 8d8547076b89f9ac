"""A Thunder that was not tried: regions are shared if it behaves as expected, and all else is off."""

import functools
import logging
import sys
import tomllib

import pytest
import thunder
import torch
from repository import PACKAGE
from thunder.extend import OperatorExecutor, get_executor

import fusioncache
from fusioncache import fusion_cache
from fusioncache.observe.record.database import RecordReader
from fusioncache.process.warning import warn_once
from fusioncache.thunder_adapter import capabilities, installation, versions
from fusioncache.thunder_adapter.capabilities import ACCELERATORS
from fusioncache.thunder_hook import register_with_thunder
from fusioncache.transform import executors as executors_module

X = torch.linspace(-1, 1, 6)


@pytest.fixture
def other_version(monkeypatch):
    warn_once.cache_clear()
    monkeypatch.setattr(thunder, "__version__", "0.3.0.dev1")


@pytest.fixture
def unusable(other_version, monkeypatch):
    """A version of Thunder that lacks what regions are read with."""
    monkeypatch.setattr(capabilities, "find_problem", lambda: "it lacks thunder.core.trace.from_trace")


def model(x):
    return torch.tanh(x) * 2


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


def test_regions_are_shared_where_all_else_is_off(other_version, monkeypatch):
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
def test_accelerators_are_on_in_a_version_that_behaves_as_expected(other_version):
    """Templates are verified first; a program is stored once all of its templates were, and loaded from then on."""
    counts = []
    for _ in range(3):
        transform = fusioncache.FusionCache(cache=fusioncache.Cache(store=True), backend="eager")
        train(transform)
        stats = transform.stats()
        counts.append((stats.verified, stats.programs_made, stats.programs_loaded))
    assert counts == [(8, 0, 0), (0, 2, 0), (0, 0, 2)]
    assert "does without" not in capabilities.explain_limits()


def test_what_is_given_is_checked_before_it_is_left_out(other_version):
    with pytest.raises(ValueError, match="schedule"):
        fusioncache.FusionCache(schedule="none")
    with pytest.raises(ValueError, match="lean"):
        fusioncache.FusionCache(lean="none")


@pytest.fixture
def asked_anew(monkeypatch):
    """Has nothing of this Thunder known in a test."""
    for name in ("find_problem", "find_missing_name"):
        monkeypatch.setattr(capabilities, name, functools.cache(getattr(capabilities, name).__wrapped__))


@pytest.mark.usefixtures("asked_anew")
def test_a_name_that_is_missing_is_a_problem(monkeypatch):
    monkeypatch.delattr(thunder.core.trace, "from_trace")
    assert capabilities.find_problem() == "it lacks thunder.core.trace.from_trace"
    assert "nothing is shared, as it lacks thunder.core.trace.from_trace" in capabilities.explain_unusable()


JIT = thunder.jit


def add(more):
    """Has what is compiled add something that it gets the result and the arguments for."""

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
            transform = fusioncache.FusionCache(cache=cache, backend="inductor", recompute="residual")
            compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
            assert torch.equal(compiled(X), model(X))
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) == 1
    (reason, count), *others = cache.stats().bypasses.items()
    assert (count, others, cache.stats().regions) == (2, [], 0) and "lightning-thunder==0.2.6" in reason
    assert dict(RecordReader().runs()[0].stats.bypasses) == {reason: 2}
    unknown = object()  # which has nothing that it could be asked for
    assert transform.transform_trace_post_optimization(unknown, executors_list=()) is unknown


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_our_executor_claims_nothing(unusable, monkeypatch):
    monkeypatch.setattr(thunder.extend, "_executor_map", dict(thunder.extend._executor_map))
    monkeypatch.setitem(sys.modules, "fusioncache.transform.executor", None)  # importing it fails
    registered = executors_module.register()
    assert type(registered) is OperatorExecutor and get_executor("fusioncache") is registered
    compiled = thunder.jit(model, executors=["fusioncache"], transforms=[fusioncache.FusionCache()])
    assert torch.equal(compiled(X), model(X))
    assert not any(symbol.sym.is_fusion for symbol in thunder.last_traces(compiled)[-1].bound_symbols)


def test_thunder_can_be_imported_whatever_our_executor_meets(monkeypatch, caplog):
    def no_such_name():
        raise ImportError("cannot import name 'FusionExecutor'")

    monkeypatch.setattr(executors_module, "register", no_such_name)
    caplog.set_level(logging.WARNING, "fusioncache")
    with pytest.warns(RuntimeWarning, match="does not get to know the executor 'fusioncache': ImportError") as caught:
        register_with_thunder()
    assert caught[0].filename == __file__
