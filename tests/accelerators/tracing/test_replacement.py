"""Replacements apply wherever originals were imported by name, only to known sources, and are removed completely."""

import importlib
import inspect
import logging
import operator
import sys
from types import ModuleType

import pytest
import torch
from replaced_functions import original, shorten
from same_traces import list_interpreted
from threads_at_once import run_at_once
from thunder.core import interpreter, jit_ext, pytree

import fusioncache
from fusioncache import tracing
from fusioncache.thunder_adapter import capabilities, installation
from fusioncache.thunder_adapter.installation import TRACING, Replacement, find_replacements


@pytest.fixture
def module(monkeypatch):
    """Yields a function that makes modules which have imported the original by name."""

    def make(name, **values):
        made = ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    yield make
    tracing.uninstall()  # while these modules exist


def install(*replacements):
    installation.install_more("tried", lambda: replacements)


def test_everywhere_is_where_it_was_imported_by_name(module):
    home = module("thunder.home", original=original)
    importer = module("thunder.deep.importer", renamed=original, twice=original, other=shorten)
    stranger = module("thunderous", original=original)
    install(Replacement(home, "original", shorten, everywhere=True))
    ours = home.original
    assert ours is importer.renamed is importer.twice is not original
    assert (stranger.original, importer.other) == (original, shorten)

    meanwhile = module("fusioncache.meanwhile", original=ours)
    importer.twice = "another one"
    installation.uninstall()
    assert home.original is importer.renamed is meanwhile.original is original
    assert importer.twice == "another one"


def test_a_module_that_is_imported_while_others_are_installed_has_it_too(module):
    home = module("thunder.home", original=original, first=len)

    def import_one(_):
        module("thunder.late", renamed=original)
        return max

    twice = Replacement(home, "original", shorten, everywhere=True, around=True)
    known = Replacement(home, "original", lambda own: lambda: own(), everywhere=True)
    install(Replacement(home, "first", import_one), known, twice)
    late = sys.modules["thunder.late"]
    assert late.renamed is home.original
    assert home.original() == "shortened original"
    installation.uninstall()
    assert late.renamed is home.original is original


def test_code_that_is_interpreted_has_thunders_own_function_interpreted():
    """As in Thunder's ``test_eval_trace``: interpretation must not show that a function of Thunder was replaced."""

    def model(x):
        return pytree.tree_map(lambda each: each * 2, x)

    def interpreted():
        return [frame.code.co_name for frame in list_interpreted(model, torch.ones(2))]

    own, before = interpreted(), dict(interpreter._default_lookaside_map)
    installation.install(["mapping"])
    assert interpreted() == own
    installation.uninstall()
    assert interpreter._default_lookaside_map == before


def all_replacements():
    """Returns all possible replacements, of every group."""
    return [each for capability in TRACING for each in find_replacements(capability)]


def in_place():
    """Returns the object that Thunder finds in each place."""
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
    """Libraries need no known source, and a probe shows that hooks work; nothing else is replaced."""

    def digest(_):
        raise error

    places, own = all_replacements(), in_place()
    hooked = [each.key for each in find_replacements("hooks")]
    monkeypatch.setattr(installation, "accepted_capabilities", set())
    capabilities.find_off.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("fusioncache.thunder_adapter.") and hasattr(module, "digest_source"):
            monkeypatch.setattr(module, "digest_source", digest)
    caplog.set_level(logging.INFO, "fusioncache")
    fusioncache.FusionCache()
    changed = [each.key for each, before in zip(places, own, strict=True) if each.get() is not before]
    assert set(changed) == {"dis", "nx", *hooked}
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
    "printing": (
        *(f"thunder.core.codeutils:{name}" for name in ("_to_printable", "is_printable")),
        *(f"thunder.core.baseutils:is_base_printable{part}" for part in ("", "_value", "_type")),
    ),
}
"""Functions that shortcuts rely on besides those that they replace, by group, each as ``module:name``."""


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
    assert ours.code_context == ["        return own, find_callsite()\n"]
    assert (ours.lineno, ours.positions.lineno) == (own.lineno + 2,) * 2
