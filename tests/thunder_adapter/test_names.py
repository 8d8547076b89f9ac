"""The list of Thunder's names is what the sources use, and all of them are there."""

from contextvars import ContextVar
from importlib import import_module
from types import FunctionType, ModuleType

import pytest
import thunder.core.jit_ext
from repository import PACKAGE
from thunder_names import write_names

from fusioncache.thunder_adapter.api import Symbol
from fusioncache.thunder_adapter.names import find_missing, list_names


def test_the_list_has_every_name_that_the_package_uses():
    """``PYTHONPATH=tests/helpers python -m thunder_names > fusioncache/thunder_adapter/names.txt`` writes it anew."""
    assert (PACKAGE / "thunder_adapter" / "names.txt").read_text() == write_names()


@pytest.mark.parametrize("accelerator", list_names())
def test_this_thunder_has_every_name(accelerator):
    assert find_missing(accelerator) == []


def test_a_name_that_is_gone_is_found(monkeypatch):
    monkeypatch.delattr(thunder.core.jit_ext, "get_jit_ctx")
    assert find_missing("sizes") == ["thunder.core.jit_ext.get_jit_ctx"]
    assert find_missing("graphs") == []


def test_a_module_that_is_gone_is_found(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "thunder.transforms.cudagraph", None)
    assert find_missing("graphs") == ["thunder.transforms.cudagraph"]


LISTS = sorted(path.stem for path in PACKAGE.joinpath("thunder_adapter").glob("*_api.py"))


@pytest.mark.parametrize("name", [name for name in LISTS if name not in ("dynamo_api", "nvfuser_api")])
def test_no_table_is_bound_by_its_name(name):
    """Another may take its place in Thunder: it is an attribute of Thunder's module, and asked for where it is read."""
    names = import_module(f"fusioncache.thunder_adapter.{name}")
    fixed = (FunctionType, ModuleType, ContextVar, Symbol, type, int, str)
    assert [each for each in names.__all__ if not isinstance(getattr(names, each), fixed)] == []
