"""The list of Thunder's names is what the sources use, and all of them are there."""

import sys
from contextvars import ContextVar
from types import FunctionType, ModuleType

import pytest
import thunder.core.jit_ext
from repository import PACKAGE
from thunder_names import write_names

from fusioncache.thunder_adapter import accelerator_api
from fusioncache.thunder_adapter.accelerator_api import MODULES, NAMES
from fusioncache.thunder_adapter.api import Symbol
from fusioncache.thunder_adapter.capabilities import find_missing, list_names


def test_the_list_has_every_name_that_the_package_uses():
    """``PYTHONPATH=tests/helpers python -m thunder_names > fusioncache/thunder_adapter/names.txt`` writes it anew."""
    assert (PACKAGE / "thunder_adapter" / "names.txt").read_text() == write_names()


def test_this_thunder_has_every_name_and_one_that_is_gone_is_found(monkeypatch):
    assert [missing for accelerator in list_names() for missing in find_missing(accelerator)] == []
    with monkeypatch.context() as gone:
        gone.delattr(thunder.core.jit_ext, "get_jit_ctx")
        assert find_missing("sizes") == ["thunder.core.jit_ext.get_jit_ctx"]
        assert find_missing("graphs") == []
    monkeypatch.setitem(sys.modules, "thunder.core.compile_data", None)
    assert find_missing("tracing") == ["thunder.core.compile_data"]


@pytest.mark.parametrize("module", NAMES)
def test_no_table_is_bound_by_its_name(module):
    """Another may take its place in Thunder: it is an attribute of Thunder's module, and asked for where it is read."""
    fixed = (FunctionType, ModuleType, ContextVar, Symbol, type, int, str)
    assert [name for name in NAMES[module].split() if not isinstance(getattr(accelerator_api, name), fixed)] == []


def test_no_name_is_in_two_modules():
    names = [name for names in NAMES.values() for name in names.split()]
    assert len({*names, *MODULES}) == len(names) + len(MODULES)
