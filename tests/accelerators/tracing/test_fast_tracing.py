"""Tracing without detours is put in once, only where Thunder is known, and taken out whole."""

import importlib
import inspect
import logging
import operator
import sys

import pytest
from threads_at_once import run_at_once
from thunder.core import interpreter, jit_ext

import fusioncache
from fusioncache import tracing
from fusioncache.thunder_adapter import capabilities, installation
from fusioncache.thunder_adapter.installation import TRACING, find_replacements
from fusioncache.thunder_adapter.shortcuts.calls import describe_one_frame


def all_replacements():
    """What may be replaced, of every group."""
    return [each for capability in TRACING for each in find_replacements(capability)]


def in_place():
    """What Thunder finds in each place."""
    return [each.get() for each in all_replacements()]


@pytest.mark.parametrize("install", [tracing.install, lambda: run_at_once(*[tracing.install] * 8)])
def test_thunder_gets_its_very_own_back(install):
    own = in_place()
    for _ in range(2):
        install()
        assert all(map(operator.is_not, in_place(), own))
        for _ in range(2):
            tracing.uninstall()
            assert all(map(operator.is_, in_place(), own))


@pytest.mark.parametrize("error", [OSError("could not get source code"), TypeError("built-in")])
def test_unknown_source_is_left_alone(monkeypatch, caplog, error):
    """Python's own library needs no known source, and a probe shows that hooks work; all else stays as it is."""

    def digest(_):
        raise error

    places, own = all_replacements(), in_place()
    hooked = [each.key for each in find_replacements("hooks")]
    monkeypatch.setattr(installation, "accepted", set())
    capabilities.find_off.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("fusioncache.thunder_adapter.") and hasattr(module, "digest_source"):
            monkeypatch.setattr(module, "digest_source", digest)
    caplog.set_level(logging.INFO, "fusioncache")
    fusioncache.FusionCache()
    changed = [each.key for each, before in zip(places, own, strict=True) if each.get() is not before]
    assert set(changed) == {"dis", *hooked}
    assert "thunder.core.interpreter:globals_lookup has another source" in caplog.text
    capabilities.find_off.cache_clear()


RELIED = {
    "flattening": ("optree:tree_flatten",),
    "leaps": (
        "thunder.torch.experimental.dtensor_torch_and_prims:dispatch_to_impl",
        "thunder.core.pytree:tree_flatten",
        "optree:tree_flatten",
        "torch.distributed:is_available",
    ),
    "min_cut": ("thunder.core.rematerialization:find_cut",),
    "printing": (
        *(f"thunder.core.codeutils:{name}" for name in ("_to_printable", "is_printable")),
        *(f"thunder.core.baseutils:is_base_printable{part}" for part in ("", "_value", "_type")),
    ),
}
"""Functions that shortcuts rely on beside the one that they replace, by groups, each by module and name."""


@pytest.mark.parametrize(("group", "place"), [(group, place) for group, places in RELIED.items() for place in places])
def test_where_another_function_is_called_on_the_way_there_is_no_shortcut(group, place, monkeypatch):
    assert find_replacements(group)
    module, _, name = place.partition(":")
    monkeypatch.setattr(importlib.import_module(module), name, lambda *args: None)
    with pytest.raises(LookupError, match="has another source"):
        find_replacements(group)


def test_the_transform_installs_it_unless_told_not_to():
    own, own_jit = interpreter.globals_lookup, jit_ext.thunder_general_jit
    fusioncache.FusionCache(fast_tracing=False)
    assert interpreter.globals_lookup is own
    fusioncache.FusionCache()
    assert inspect.unwrap(jit_ext.thunder_general_jit) is own_jit is not jit_ext.thunder_general_jit
    assert inspect.unwrap(interpreter.globals_lookup) is own is not interpreter.globals_lookup


def test_the_caller_of_what_is_traced_is_described_as_thunder_does():
    def find_callsite():
        return interpreter.InterpreterRuntimeCtx(False, None)._original_callsite

    def call():
        own = find_callsite()
        tracing.install()
        return own, find_callsite()

    own, ours = call()
    assert own.frame is ours.frame and (own.function, own.filename) == ("call", __file__)
    assert own.code_context == ["        own = find_callsite()\n"]
    assert ours.code_context == ["        return own, find_callsite()\n"]
    assert (ours.lineno, ours.positions.lineno) == (own.lineno + 2,) * 2
    assert [type(each) for each in ours] == [type(each) for each in own]
    with pytest.raises(IndexError):
        describe_one_frame(lambda: inspect.stack()[10_000])()
