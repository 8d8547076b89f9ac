"""The names that fusioncache takes from Thunder: expectations of them, and their list, which equals their uses."""

import ast
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import thunder
from repository import PACKAGE, find_imports

from fusioncache.thunder_adapter import accelerator_api, api
from fusioncache.thunder_adapter.accelerator_api import MODULES, NAMES
from fusioncache.thunder_adapter.capabilities import find_missing, list_names

_ACCELERATORS = {
    "sizes": "accelerators/sizes",
    "programs": "accelerators/programs transform/dynamo_graphs.py thunder_adapter/hooks.py",
    "tracing": "thunder_adapter/shortcuts accelerators/layers",
    "lean steps": "accelerators/steps accelerators/attention transform/grouped_products.py",
    "schedule": "accelerators/schedule distributed",
    "splitting": "accelerators/splitting",
}
"""Paths of the code of each accelerator. All other code is the core's."""
_CORE_API = "api"
"""Names imported from this module belong to the core, in any file: all other code works on bound symbols, too."""
_NVFUSER = "nvfuser_executor"
"""A module that cannot be imported without nvFuser."""


def _find_accelerator(path: Path) -> str:
    """Returns the accelerator that a file of the package belongs to, or ``core``; of nested paths, the inner one's."""
    places = [(place, name) for name, places in _ACCELERATORS.items() for place in places.split()]
    found = [(len(place), name) for place, name in places if path.is_relative_to(PACKAGE / place)]
    return max(found, default=(0, "core"))[1]


def _write_names() -> str:
    """Returns the names as text, in the format of ``names.txt``: imported ones, and attributes of modules."""
    names: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in PACKAGE.rglob("*.py"):
        for module, name in _list_names_of(path):
            names[_find_accelerator(path)][module].add(name)
    lines = []
    for accelerator in ("core", *_ACCELERATORS):
        lines += ["", f"[{accelerator}]"]
        lines += [f"{module}: {' '.join(sorted(found))}" for module, found in sorted(names[accelerator].items())]
    return "\n".join(lines[1:]) + "\n"


def _list_names_of(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text())
    modules = {}
    imports = [(*each, True) for each in _read_imports(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (api := _find_api(node.module)):
            known = _read_api(api)
            imports += [(alias.asname or alias.name, *known[alias.name], api != _CORE_API) for alias in node.names]
    for here, module, name, is_listed in imports:
        if module and name and is_listed:
            yield module, name
        if _is_module(f"{module}.{name}".strip(".")):
            modules[here] = f"{module}.{name}".strip(".")
    for node in ast.walk(tree):
        known = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        if known and node.attr != "__file__":
            yield modules[node.value.id], node.attr


def _find_api(module: str | None) -> str:
    """Returns the name of an adapter module that provides names of Thunder; empty for any other module."""
    package, _, name = (module or "").rpartition(".")
    return name if package == "fusioncache.thunder_adapter" and name.endswith("api") else ""


@cache
def _read_api(api: str) -> dict[str, tuple[str, str]]:
    """Returns Thunder's names in a module of the adapter: for each local name its module and its name there."""
    if api != _CORE_API:
        names = {name: (module, name) for module, names in NAMES.items() for name in names.split()}
        modules = {name: module.rpartition(".")[::2] for name, module in MODULES.items()}
        return names | modules | {_NVFUSER: (MODULES[_NVFUSER], "")}
    tree = ast.parse((PACKAGE / "thunder_adapter" / f"{api}.py").read_text())
    return {here: (module, name) for here, module, name in _read_imports(tree)}


def _read_imports(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yields local name, module and original name of each import from Thunder."""
    found = ((here, module, name) for module, name, here in find_imports(tree))
    return (each for each in found if each[1].partition(".")[0] == "thunder")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


def list_used(module):
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    trees = [ast.parse(text) for text in texts if f"from {module.__name__} import" in text]
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports if node.module == module.__name__ for alias in node.names}


def test_each_name_is_used_and_each_use_has_a_name():
    names = {name for name in vars(api) if not name.startswith("__")}
    assert names - {"annotations", "call_waiting"} == list_used(api)
    of_accelerators = [name for names in NAMES.values() for name in names.split()]
    assert {*of_accelerators, *MODULES} == list_used(accelerator_api)
    assert len(list_used(accelerator_api)) == len(of_accelerators) + len(MODULES)  # none is in two modules


def test_the_list_has_every_name_that_the_package_uses():
    """``REWRITE_GOLDEN=1`` rewrites it."""
    path = PACKAGE / "thunder_adapter" / "names.txt"
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(_write_names())
    assert path.read_text() == _write_names()


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
    """Thunder may replace a table, so it is read as an attribute of Thunder's module at each use."""
    fixed = (FunctionType, ModuleType, ContextVar, api.Symbol, type, int, str)
    assert [name for name in NAMES[module].split() if not isinstance(getattr(accelerator_api, name), fixed)] == []
