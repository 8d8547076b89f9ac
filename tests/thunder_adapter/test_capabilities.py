"""A capability is there if its sources are known or its probe passes; an accelerator is off without those it needs."""

import dis
import re
import sys
from dataclasses import replace

import pytest
import thunder
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
    """Returns what does the same as a handler of instructions, from another source."""
    return lambda inst, /, **state: own(inst, **state)


def test_instructions_with_another_source_are_accepted_if_they_are_observed(monkeypatch):
    for name in hooks.INSTRUCTIONS:
        monkeypatch.setitem(HANDLERS, name, pass_on(HANDLERS[name]))
    finding = examine(find("observed interpreter"))
    found = [re.search(r"\[(\w+)\]", misfit)[1] for misfit in finding.misfits]
    assert finding.works and sorted(found) == sorted(hooks.INSTRUCTIONS)
    installation.install()
    assert hooks.are_installed()


@pytest.mark.parametrize("name", [each for each in hooks.INSTRUCTIONS if dis.opmap[each] < 256])  # others are never met
def test_an_instruction_that_is_not_observed_is_a_problem(monkeypatch, name):
    monkeypatch.setattr(hooks, "watch_instruction", lambda own: lambda handler: handler)
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
    monkeypatch.setattr(hooks, "watch_instruction", lambda name: lambda handler: handler)
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
    jit = thunder.jit

    def jit_otherwise(function, **options):
        compiled = jit(function, **options)
        compiled._lc_cs.interpreter_cache = ()
        return compiled

    monkeypatch.setattr(thunder, "jit", jit_otherwise)
    assert capabilities.find_other_entries() == "the entries of a compiled function are no list"
    monkeypatch.setattr(thunder, "jit", lambda function, **options: jit(function, cache="no caching", **options))
    assert capabilities.find_other_entries() == "a first call asks for interpreter, and leaves 0 entries"


def test_probes_run_where_the_version_was_not_tried(monkeypatch):
    asked = []
    watched = replace(find("list of entries"), probe=lambda: asked.append(1))
    assert examine(watched).works and not asked
    monkeypatch.setattr(versions, "TRIED", {})
    assert examine(watched).works and asked == [1]
