"""A Thunder that was not tried: the model runs as it does without us, and who asks is told why."""

import logging
import tomllib

import pytest
import thunder
import torch
from repository import PACKAGE
from thunder.extend import OperatorExecutor, get_executor

import fusioncache
from fusioncache.process.warning import warn_once
from fusioncache.record.reader import RecordReader
from fusioncache.thunder_hook import register_with_thunder
from fusioncache.trace import executors as executors_module
from fusioncache.tracing import installation, thunder_version

X = torch.linspace(-1, 1, 6)


@pytest.fixture
def other_version(monkeypatch):
    warn_once.cache_clear()
    monkeypatch.setattr(thunder, "__version__", "0.3.0.dev1")


def model(x):
    return torch.tanh(x) * 2


def test_the_version_that_is_installed_was_tried():
    assert thunder_version.explain_untried() is None
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    assert [need for need in project["project"]["dependencies"] if "lightning-thunder" in need]
    assert thunder.__version__ in thunder_version.TRIED


@pytest.mark.parametrize(("version", "tried"), [("0.2.6+local", True), ("0.2.6.post1", False), ("0.2.7.dev0", False)])
def test_a_build_of_our_own_is_the_same_version(monkeypatch, version, tried):
    monkeypatch.setattr(thunder, "__version__", version)
    assert (thunder_version.explain_untried() is None) is tried


def test_a_thunder_without_version_was_not_tried(monkeypatch):
    monkeypatch.delattr(thunder, "__version__")
    assert thunder_version.explain_untried().startswith("Thunder of no known version is left as it is")


def test_a_model_runs_and_one_warning_says_what_to_install(other_version):
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


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_nothing_is_asked_of_a_trace(other_version):
    class Unknown:
        def __getattribute__(self, name):
            raise AttributeError(name)

    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False))
    trace = Unknown()
    assert transform.transform_trace_post_optimization(trace, executors_list=()) is trace


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_tracing_is_left_as_it_is(other_version, monkeypatch):
    installation.uninstall()
    asked: list[str] = []
    groups = dict.fromkeys(installation.GROUPS, lambda: asked.append("replacements") or ())
    monkeypatch.setattr(installation, "GROUPS", groups)
    fusioncache.FusionCache(fast_tracing=True)
    fusioncache.tracing.install()
    assert not asked


@pytest.mark.filterwarnings("ignore:fusioncache. Thunder 0.3.0.dev1")
def test_our_executor_claims_nothing(other_version, monkeypatch):
    monkeypatch.setattr(thunder.extend, "_executor_map", dict(thunder.extend._executor_map))
    monkeypatch.setattr(
        executors_module, "problem", lambda name, device: pytest.fail("Thunder's internals were imported")
    )
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
