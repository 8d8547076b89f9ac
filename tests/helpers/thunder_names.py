"""The names of Thunder that the package uses, read out of its sources."""

import ast
import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from repository import PACKAGE

from fusioncache.thunder_adapter.accelerator_api import MODULES, NAMES

_ACCELERATORS = {
    "sizes": "accelerators/sizes",
    "programs": "accelerators/programs transform/dynamo_frames.py thunder_adapter/hooks.py",
    "tracing": "thunder_adapter/shortcuts accelerators/layers",
    "lean steps": "accelerators/steps accelerators/attention transform/grouped_products.py",
    "schedule": "accelerators/schedule distributed",
}
"""Where the code of an accelerator is. All else is the core's."""
_CORE_API = "api"
"""What is imported from this module is the core's, whichever file imports it: all else works on bound symbols, too."""
_NVFUSER = "nvfuser_executor"
"""A module that cannot be imported without nvFuser."""


def _find_accelerator(path: Path) -> str:
    """Returns the accelerator that a file of the package belongs to, or ``core``: of nested places the inner one's."""
    places = [(place, name) for name, places in _ACCELERATORS.items() for place in places.split()]
    found = [(len(place), name) for place, name in places if path.is_relative_to(PACKAGE / place)]
    return max(found, default=(0, "core"))[1]


def write_names() -> str:
    """Returns the names as text, in the format of ``names.txt``: those that are imported, and attributes of modules."""
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
        if name and is_listed:
            yield module, name
        if _is_module(f"{module}.{name}".strip(".")):
            modules[here] = f"{module}.{name}".strip(".")
    for node in ast.walk(tree):
        known = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        if known and node.attr != "__file__":
            yield modules[node.value.id], node.attr


def _find_api(module: str | None) -> str:
    """Returns the name of a module of the adapter that gives others names of Thunder; empty if it is another module."""
    package, _, name = (module or "").rpartition(".")
    return name if package == "fusioncache.thunder_adapter" and name.endswith("api") else ""


@cache
def _read_api(api: str) -> dict[str, tuple[str, str]]:
    """Returns what a module of the adapter has of Thunder: under its name there, the module and the name in that."""
    if api != _CORE_API:
        names = {name: (module, name) for module, names in NAMES.items() for name in names.split()}
        parts = {name: module.rpartition(".") for name, module in MODULES.items()}
        whole = {name: (package, last) for name, (package, _, last) in parts.items() if package}
        without_package = {name: (module, "") for name, module in MODULES.items() if name not in whole}
        return names | whole | without_package | {_NVFUSER: (MODULES[_NVFUSER], "")}
    tree = ast.parse((PACKAGE / "thunder_adapter" / f"{api}.py").read_text())
    return {here: (module, name) for here, module, name in _read_imports(tree)}


def _read_imports(tree):
    """Yields the name here of each import from Thunder, its module, and its name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(alias.asname or alias.name, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [(alias.asname or alias.name, node.module, alias.name) for alias in node.names]
        else:
            continue
        yield from (each for each in found if each[1].partition(".")[0] == "thunder")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


if __name__ == "__main__":
    print(write_names(), end="")
