"""The shape of the house: imports run one way, template/ is pure, importing is cheap."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from repository import DOCS, PACKAGE

import fusioncache

_IMPORTS = {
    "process": "",
    "thunder_adapter": "",
    "ir": "",
    "template": "ir",
    "store": "ir",
    "observe": "ir template humanize",
    "backends": "ir observe thunder_adapter",
    "cache": "ir template store observe backends",
    "verification": "ir template store observe backends cache thunder_adapter",
    "transform": "ir template store observe backends cache verification thunder_adapter humanize",
    "accelerators": "ir template store observe backends cache verification transform thunder_adapter humanize",
    "distributed": "ir backends thunder_adapter",
    "cli": "ir template store observe backends cache accelerators thunder_adapter humanize",
}
MAY_IMPORT = {folder: set(others.split()) for folder, others in _IMPORTS.items()}
EVERYBODY_MAY = {"process"}
KNOW_TORCH_WHOLE = {"thunder_adapter", "distributed", "transform", "accelerators", "backends", "verification"}
"""The folders that may import torch, nvFuser's bindings and numpy in all their files."""
KNOW_TORCH = {f"cache/{name}.py" for name in ("call", "folded_chains", "peers", "results")}
KNOW_TORCH |= {"process/tensor_guards.py"}
PURE_BUT_FOR = {
    "residual": {"chaining", "recompute"},
    "schedule": {"collective_passes", "collectives", "scheduling"},
}
"""Accelerators that plan without torch and Thunder, each with the files that apply the plans to traces."""


@cache
def imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


RECORDS = "fusioncache.observe.record.observations"
"""What plans are told in: values that know neither torch nor Thunder."""


def test_imports_run_one_way():
    for path in (path for folder in MAY_IMPORT for path in (PACKAGE / folder).rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0]
        used = {name.split(".")[1] for name in imports(path) if name.startswith("fusioncache.")}
        assert used <= MAY_IMPORT[folder] | {folder} | EVERYBODY_MAY, path


@pytest.mark.parametrize("accelerator", PURE_BUT_FOR)
def test_plans_know_neither_torch_nor_thunder(accelerator):
    others = PURE_BUT_FOR[accelerator]
    allowed = ("fusioncache.ir", "fusioncache.template", "fusioncache.humanize", "fusioncache.process", RECORDS)
    own = f"fusioncache.accelerators.{accelerator}."
    for path in PACKAGE.joinpath("accelerators", accelerator).glob("*.py"):
        if path.stem not in others:
            used = imports(path)
            assert "torch" not in {name.split(".")[0] for name in used}, path
            ours = {name for name in used if name.startswith("fusioncache") and not name.startswith(allowed)}
            assert all(name.startswith(own) and name.removeprefix(own) not in others for name in ours), path


def test_only_these_folders_know_thunder_and_torch():
    for path in PACKAGE.rglob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        folder = path.relative_to(PACKAGE).parts[0]
        assert "thunder" not in roots or folder == "thunder_adapter", path
        if folder in MAY_IMPORT.keys() - KNOW_TORCH_WHOLE:
            assert not roots & {"nvfuser_direct", "numpy"}, path
            assert "torch" not in roots or str(path.relative_to(PACKAGE)) in KNOW_TORCH, path


def test_names_of_thunder_come_through_the_adapters_list():
    """Others take them from a module that does no more than import them, so that ``names.txt`` knows of each."""
    _, *body, last = ast.parse(PACKAGE.joinpath("thunder_adapter", "api.py").read_text()).body
    assert {type(node) for node in body} <= {ast.Import, ast.ImportFrom}
    assert ast.unparse(last) == "call_waiting()"


def test_all_warnings_go_one_way():
    """``fusioncache.process.warning.warn`` cannot raise; ``warnings.warn`` raises where warnings are errors."""
    users = [path for path in PACKAGE.rglob("*.py") if "warnings" in imports(path)]
    assert users == [PACKAGE / "process" / "warning.py"]


def test_architecture_shows_the_folders_in_the_order_of_their_imports():
    """A folder imports from folders that stand below it in the picture, never from one above or beside it."""
    (picture,) = re.findall(r"^```\n(cli/  .*?)```$", (DOCS / "architecture.md").read_text(), re.DOTALL | re.MULTILINE)
    rows = [re.findall(r"(\w+)/(?=  )", line) for line in picture.splitlines()]
    floors = {folder: floor for floor, row in enumerate(rows) for folder in row}
    assert sorted(floors) == sorted(MAY_IMPORT)
    assert sorted(floors) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    for folder, others in MAY_IMPORT.items():
        for other in (others | EVERYBODY_MAY - {folder}) & floors.keys():
            assert floors[other] > floors[folder], (folder, other)


def in_new_process(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "thunder", "rich", "click", "sqlite3"}
    assert in_new_process(f"import sys, fusioncache; print({heavy} & set(sys.modules))") == "set()\n"


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'fusioncache' has no attribute 'Cash'"):
        _ = fusioncache.Cash
    assert set(fusioncache.__all__) <= set(dir(fusioncache))
    for name in fusioncache.__all__:
        assert getattr(fusioncache, name) is not None


def test_thunder_and_fusioncache_are_imported_in_any_order():
    # What needs names of Thunder's at once imports Thunder in the midst of importing those.
    modules = ("thunder_adapter.api", "accelerators.programs.build", "backends.refused_operations")
    orders = ["thunder, fusioncache", *(f"fusioncache.{module}, thunder" for module in modules)]
    uses = [f"import {order}; assert thunder.get_executor('fusioncache')" for order in orders]
    uses += ["import fusioncache; fusioncache.executors()", "import fusioncache; fusioncache.Plugin()"]
    # Forks of a process that has torch, with what Thunder imports of it: that takes most of the time.
    program = f"""
import os, sys
import torch._dynamo, torch._inductor.codecache, torch.distributed.tensor
assert not {{"thunder", "fusioncache"}} & set(sys.modules)
for use in {uses}:
    child = os.fork()
    if not child:
        exec(use)
        print("thunder" in sys.modules, flush=True)
        os._exit(0)
    assert not os.waitpid(child, 0)[1], use
"""
    assert in_new_process(program).splitlines() == ["True"] * len(uses)
