"""Arguments and variables of ``FusionCache``: everything that programs depend on is in ``cache_key``."""

import inspect
from typing import Any

import pytest

import fusioncache
from fusioncache.process import settings
from fusioncache.process.settings import Setting

IN_KEY: dict[str, tuple[Any, Any]] = {
    "accelerators": (None, ["programs", "sizes"]),
    "backend": ("eager", "inductor"),
    "in_flight_bytes": (None, 0),
    "bucket_bytes": (None, 0),
    "lean": ("auto", "thunder"),
    "memory_budget": (None, 0),
    "recompute": (None, "residual"),
    "residual": ("fold", "carry"),
    "schedule": ("auto", "thunder"),
}
"""Two values of each argument that changes traces."""

NOT_IN_KEY: dict[str, tuple[str, Any]] = {
    "cache": ("says where programs and templates are kept", None),
    "explain": ("says what is printed", True),
    "fast_tracing": ("leaves traces as they are; without it no program is loaded or kept", False),
    "graphs": ("says how programs are called; what is kept is the program", True),
    "jobs": ("says who compiles", 0),
    "lengths": ("says what is compiled before a call has it; no trace has another call for it", [64]),
    "sizes": ("says which functions of regions are for any sizes; no trace has another call for it", "static"),
    "programs": ("says whether programs are loaded and kept", False),
    "verify": ("tries what is loaded, and keeps nothing", True),
}
"""Each other argument: why the key does not need it, and a value other than its default."""


def key_with(**options: Any) -> str:
    cache = fusioncache.Cache(record=False, store=False)
    return fusioncache.FusionCache(**{"cache": cache, "backend": "eager", **options}).cache_key()


@pytest.mark.parametrize("name", inspect.signature(fusioncache.FusionCache).parameters)
def test_an_argument_is_in_the_key_if_it_changes_a_trace(name):
    if name in IN_KEY:
        one, other = IN_KEY[name]
        assert key_with(**{name: one}) == key_with(**{name: one}) != key_with(**{name: other})
    else:
        _, other = NOT_IN_KEY[name]
        assert key_with(**{name: other}) == key_with()


VALUES = {
    "FUSIONCACHE_DIR": "elsewhere",
    "FUSIONCACHE_STORE": "1",
    "FUSIONCACHE_REMOTE": "http://localhost:9",
    "FUSIONCACHE_TRUST": "unsigned",
    "FUSIONCACHE_SIGNING_KEY": "none",
    "FUSIONCACHE_LOG": "events.jsonl",
    "FUSIONCACHE_EXPLAIN": "1",
    "FUSIONCACHE_VERIFY": "all",
    "FUSIONCACHE_JOBS": "0",
    "FUSIONCACHE_PROGRAMS": "0",
    "FUSIONCACHE_SIZES": "dynamic",
    "FUSIONCACHE_GRAPHS": "1",
    "FUSIONCACHE_PASSES": "0",
    "FUSIONCACHE_ACCELERATORS": "lean steps, schedule, residual",  # those whose options are in the key
}
"""A value of each variable. Each names a location, or sets an argument that is not in the key."""


def test_no_variable_of_ours_changes_a_trace(monkeypatch, tmp_path):
    before = key_with()
    assert VALUES.keys() == {value.name for value in vars(settings).values() if isinstance(value, Setting)}
    monkeypatch.chdir(tmp_path)
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    assert key_with() == before


def test_accelerators_that_the_environment_switches_off_are_in_the_key(monkeypatch):
    before = key_with()
    monkeypatch.setenv("FUSIONCACHE_ACCELERATORS", "none")
    assert key_with() == key_with(accelerators=[]) != before
