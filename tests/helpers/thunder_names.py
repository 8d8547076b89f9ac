"""The names of Thunder that the package uses, read out of its sources."""

import ast
import importlib.util
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from repository import PACKAGE

ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "sizes": ("tracing/lengths", "trace/lengths.py"),
    "programs": ("program", "trace/program_list.py", "trace/dynamo_frames.py", "thunder_adapter/watch"),
    "tracing": ("thunder_adapter/interpreter", "thunder_adapter/passes", "tracing/layers"),
    "lean steps": ("trace/lean", "tracing/prologue", "trace/query_layout.py", "trace/grouped_products.py", "attention"),
    "graphs": ("program/cuda_graphs.py",),
    "schedule": ("distributed", "trace/averaging.py", "trace/resharding.py"),
}
"""Where the code of an accelerator is. All else is the core's."""


def find_accelerator(path: Path) -> str:
    """Returns the accelerator that a file of the package belongs to, or ``core``."""
    relative = str(path.relative_to(PACKAGE))
    found = [
        (len(place), name)
        for name, places in ACCELERATORS.items()
        for place in places
        if relative == place or relative.startswith(f"{place}/")
    ]
    return max(found)[1] if found else "core"


def list_names() -> dict[str, dict[str, set[str]]]:
    """Returns the names by accelerator and module: those that are imported, and attributes of imported modules."""
    names: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in PACKAGE.rglob("*.py"):
        for module, name in _list_names_of(path):
            names[find_accelerator(path)][module].add(name)
    return names


def write_names() -> str:
    """Returns the names as text, in the format of ``names.txt``."""
    names = list_names()
    lines = []
    for accelerator in ("core", *ACCELERATORS):
        lines += ["", f"[{accelerator}]"]
        lines += [f"{module}: {' '.join(sorted(found))}" for module, found in sorted(names[accelerator].items())]
    return "\n".join(lines[1:]) + "\n"


def _list_names_of(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text())
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if _is_thunders(alias.name)}
        if isinstance(node, ast.ImportFrom) and node.module and _is_thunders(node.module):
            for alias in node.names:
                yield node.module, alias.name
                if _is_module(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        if isinstance(node, ast.ImportFrom) and node.module == "fusioncache.thunder_adapter.api":
            known = {"ltorch": "thunder.torch", "torchex": "thunder.executors.torchex"}
            known |= {name: f"thunder.core.{name}" for name in ("prims", "devices", "dtypes")}
            modules |= {alias.name: known[alias.name] for alias in node.names if alias.name in known}
    for node in ast.walk(tree):
        known = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        if known and node.attr != "__file__":
            yield modules[node.value.id], node.attr


def _is_thunders(name: str) -> bool:
    return name.partition(".")[0] == "thunder"


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


if __name__ == "__main__":
    print(write_names(), end="")
