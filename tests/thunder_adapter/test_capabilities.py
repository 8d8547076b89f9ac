"""A capability is there if its sources are known or its probe passes; an accelerator is off without those it needs."""

import dis
import sys
from dataclasses import replace

import pytest
import thunder
import torch
from thunder.core import interpreter, jit_ext

from fusioncache.thunder_adapter import capabilities, hooks, installation, versions
from fusioncache.thunder_adapter.capabilities import ACCELERATORS, CAPABILITIES, examine, find_off, list_capabilities
from fusioncache.thunder_adapter.installation import list_patches

HANDLERS = interpreter._default_opcode_handler_map


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(installation, "accepted", set())
    installation.uninstall()
    find_off.cache_clear()
    yield
    installation.uninstall()
    find_off.cache_clear()


def find(name):
    return next(each for each in list_capabilities() if each.name == name)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: capability.name)
def test_every_capability_is_there(capability):
    finding = examine(capability, thorough=True)
    assert finding.works, finding.problem


def test_each_row_of_the_table_belongs_to_a_capability():
    named = [each.patches for each in list_capabilities() if each.patches]
    assert sorted(named) == sorted(list_patches())
    assert {user for each in CAPABILITIES for user in each.users} == set(ACCELERATORS)


def test_probes_leave_everything_as_it_was():
    places = [(HANDLERS, name) for name in hooks.INSTRUCTIONS]
    before = [holder[name] for holder, name in places], thunder.thunder_general_jit, jit_ext.general_jit_lookaside
    for capability in CAPABILITIES:
        examine(capability, thorough=True)
    assert before == (
        [holder[name] for holder, name in places],
        thunder.thunder_general_jit,
        jit_ext.general_jit_lookaside,
    )
    assert installation.list_installed() == () and sys.monitoring.get_tool(5) is None


def change_source(monkeypatch, holder, name, make):
    """Gives a function of Thunder another source."""
    own = holder[name] if isinstance(holder, dict) else getattr(holder, name)
    (monkeypatch.setitem if isinstance(holder, dict) else monkeypatch.setattr)(holder, name, make(own))


@pytest.mark.parametrize("name", hooks.INSTRUCTIONS)
def test_an_instruction_with_another_source_isaccepted_if_it_is_observed(monkeypatch, name):
    change_source(monkeypatch, HANDLERS, name, lambda own: lambda inst, /, **state: own(inst, **state))
    capability = find("observed interpreter")
    finding = examine(capability)
    assert finding.works and len(finding.misfits) == 1 and f"[{name}]" in finding.misfits[0]
    installation.install()
    assert hooks.are_installed()


@pytest.mark.parametrize("name", [each for each in hooks.INSTRUCTIONS if dis.opmap[each] < 256])  # others are never met
def test_an_instruction_that_is_not_observed_is_a_problem(monkeypatch, name):
    monkeypatch.setattr(hooks, "watch_instruction", lambda own: lambda handler: handler)
    monkeypatch.setattr(hooks, "INSTRUCTIONS", (name,))
    assert f"{name} was observed 0 times" in capabilities.find_unobserved()


@pytest.mark.parametrize(
    ("maker", "problem"),
    [
        ("watch_functions", "was observed 0 times"),
        ("watch_globals", "was observed 0 times"),
        ("watch_calls", "was observed 0 times"),
    ],
)
def test_what_is_not_observed_at_all_is_a_problem(monkeypatch, maker, problem):
    monkeypatch.setattr(hooks, maker, lambda own: own)
    assert problem in capabilities.find_unobserved()


def test_an_observer_that_is_told_twice_is_a_problem(monkeypatch):
    monkeypatch.setattr(hooks, "watch_globals", lambda own, watch=hooks.watch_globals: watch(watch(own)))
    assert "was observed 6 times, not 3 times" in capabilities.find_unobserved()


def test_a_probe_that_fails_turns_accelerators_off(monkeypatch):
    change_source(monkeypatch, HANDLERS, "IS_OP", lambda own: lambda inst, /, **state: own(inst, **state))
    monkeypatch.setattr(hooks, "watch_instruction", lambda name: lambda handler: handler)
    off = find_off()
    assert set(off) == {"programs", "sizes", "tracing"} and "was observed 0 times" in off["programs"]


def test_a_probe_that_raises_is_a_problem():
    failing = replace(find("list of entries"), probe=lambda: 1 / 0)
    assert examine(failing, thorough=True).problem == "a probe fails: ZeroDivisionError: division by zero"


def test_without_a_probe_another_source_is_a_problem(monkeypatch):
    change_source(monkeypatch, jit_ext, "_maybe_update_proxy_name", lambda own: lambda *args, **options: own(*args))
    assert find_off() == {"sizes": "thunder.core.jit_ext:_maybe_update_proxy_name has another source"}


@pytest.mark.parametrize(
    ("accelerator", "module", "name", "off"),
    [
        ("graphs", "thunder.transforms.cudagraph", "CUDAGraphRunner", {"graphs"}),
        ("schedule", "thunder.distributed", "FSDPType", {"schedule"}),
        ("programs", "thunder.core.langctxs", "get_langctx", {"programs", "sizes"}),
        ("sizes", "thunder.core.proxies", "is_proxy_name_available", {"sizes"}),
        ("lean steps", "thunder.executors.sdpaex", "_attention_mask_memory_efficient_helper", {"lean steps"}),
    ],
)
def test_an_accelerator_is_off_without_a_name(monkeypatch, accelerator, module, name, off):
    monkeypatch.setattr(capabilities, "find_missing", lambda of: [f"{module}.{name}"] if of == accelerator else [])
    assert find_off() == dict.fromkeys(off, f"Thunder has no {module}.{name}")


class Entries:
    """Something else than a list in the place of the entries."""

    def __init__(self):
        self.own = []

    def __reversed__(self):
        return reversed(self.own)

    append = property(lambda self: self.own.append)


def test_another_list_of_entries_is_a_problem(monkeypatch):
    jit = thunder.jit

    def jit_otherwise(function, **options):
        compiled = jit(function, **options)
        compiled._lc_cs.interpreter_cache = Entries()
        return compiled

    monkeypatch.setattr(thunder, "jit", jit_otherwise)
    assert capabilities.find_other_entries() == "the entries of a compiled function are no list"


def test_entries_that_are_not_looked_through_are_a_problem(monkeypatch):
    jit = thunder.jit
    monkeypatch.setattr(thunder, "jit", lambda function, **options: jit(function, cache="no caching", **options))
    assert capabilities.find_other_entries() == "a first call asks for interpreter, and leaves 0 entries"


def test_probes_run_where_the_version_was_not_tried(monkeypatch):
    asked = []
    watched = replace(find("list of entries"), probe=lambda: asked.append(1))
    assert examine(watched).works and not asked
    monkeypatch.setattr(versions, "TRIED", {})
    assert examine(watched).works and asked == [1]


def test_probing_computes_what_python_computes():
    x = torch.linspace(-1, 1, 6)
    assert torch.equal(capabilities.exercise(x, torch.tanh, {"other": 2}), torch.tanh(x) * 11)
