"""Tracing without detours: the same traces, errors and results as Thunder's own, from fewer interpreted frames."""

import inspect
import logging
import sys
from unittest import mock

import pytest
import thunder
import torch
from threads_at_once import run_at_once
from thunder.core import interpreter, jit_ext

import fusioncache
from fusioncache import tracing
from fusioncache.thunder_adapter import capabilities, installation
from fusioncache.thunder_adapter.installation import TRACING, find_replacements
from fusioncache.thunder_adapter.shortcuts.calls import describe_one_frame


@pytest.fixture(autouse=True)
def thunders_own():
    """Every test starts and ends with Thunder's own functions."""

    tracing.uninstall()
    yield
    tracing.uninstall()


X = torch.linspace(-1, 1, 16).reshape(4, 4)


def test_fewer_frames_are_interpreted():
    def frames():
        with mock.patch.object(interpreter, "_run_frame", wraps=interpreter._run_frame) as run:
            thunder.jit(torch.nn.Linear(4, 4))(X)
        return run.call_count

    slow = frames()
    tracing.install()
    assert frames() * 3 < slow


def all_replacements():
    """What may be replaced, of every group."""
    return [each for capability in TRACING for each in find_replacements(capability)]


def in_place():
    """What Thunder finds in each place."""
    return [each.get() for each in all_replacements()]


def all_differ(these, those):
    return all(one is not other for one, other in zip(these, those, strict=True))


def all_same(these, those):
    return all(one is other for one, other in zip(these, those, strict=True))


def test_thunder_gets_its_very_own_back():
    own = in_place()
    for _ in range(2):
        fusioncache.tracing.install()
        assert all_differ(in_place(), own)
        fusioncache.tracing.uninstall()
        assert all_same(in_place(), own)
    fusioncache.tracing.uninstall()
    assert all_same(in_place(), own)


def test_threads_install_it_once():
    own = in_place()
    run_at_once(*[tracing.install] * 8)
    assert all_differ(in_place(), own)
    tracing.uninstall()
    assert all_same(in_place(), own)


def no_source(_):
    raise OSError("could not get source code")


def no_file(_):
    raise TypeError("built-in")


@pytest.mark.parametrize("digest", [no_source, no_file])
def test_unknown_source_is_left_alone(monkeypatch, caplog, digest):
    """Python's own library needs no known source, and a probe shows that hooks work; all else stays as it is."""
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


def test_the_transform_installs_it_unless_told_not_to():
    own, own_jit = interpreter.globals_lookup, jit_ext.thunder_general_jit
    fusioncache.FusionCache(fast_tracing=False)
    assert interpreter.globals_lookup is own
    fusioncache.FusionCache()
    assert inspect.unwrap(jit_ext.thunder_general_jit) is own_jit is not jit_ext.thunder_general_jit
    assert inspect.unwrap(interpreter.globals_lookup) is own is not interpreter.globals_lookup


def test_who_called_what_is_traced_is_described_as_thunder_does():
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
