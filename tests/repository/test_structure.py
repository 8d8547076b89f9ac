"""The structure of the package: imports run one way, template/ is pure, imports are cheap, texts use the field's terms.

Folders of tests are those of the package, and a test uses no private name of another file.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from repository import DOCS, HELPERS, PACKAGE, ROOT, find_imports, run_code

import fusioncache
from fusioncache.observe.record.stats import Stats

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
KNOW_TORCH = {f"cache/{name}.py" for name in ("call", "peers", "results")}
KNOW_TORCH |= {"process/tensor_guards.py"}
PURE_BUT_FOR = {
    "residual": {"chaining", "recompute"},
    "schedule": {"collective_passes", "collectives", "scheduling"},
}
"""Accelerators that plan without torch and Thunder, each with the files that apply the plans to traces."""


@cache
def imports(path: Path) -> set[str]:
    return {module for module, _, _ in find_imports(ast.parse(path.read_text()))}


RECORDS = "fusioncache.observe.record.observations"
"""The module of the values that describe plans, without torch and Thunder."""


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
    """Other modules take them from a module that only imports them, so that ``names.txt`` lists each."""
    _, *body, last = ast.parse(PACKAGE.joinpath("thunder_adapter", "api.py").read_text()).body
    assert {type(node) for node in body} <= {ast.Import, ast.ImportFrom}
    assert ast.unparse(last) == "call_waiting()"


def test_all_warnings_go_one_way():
    """``fusioncache.process.warning.warn`` cannot raise; ``warnings.warn`` raises where warnings are errors."""
    users = [path for path in PACKAGE.rglob("*.py") if "warnings" in imports(path)]
    assert users == [PACKAGE / "process" / "warning.py"]


def test_architecture_shows_the_folders_in_the_order_of_their_imports():
    """A folder imports from folders that are below it in the picture, never from one above or beside it."""
    (picture,) = re.findall(r"^```\n(cli/  .*?)```$", (DOCS / "architecture.md").read_text(), re.DOTALL | re.MULTILINE)
    rows = [re.findall(r"(\w+)/(?=  )", line) for line in picture.splitlines()]
    floors = {folder: floor for floor, row in enumerate(rows) for folder in row}
    assert sorted(floors) == sorted(MAY_IMPORT)
    assert sorted(floors) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    for folder, others in MAY_IMPORT.items():
        for other in (others | EVERYBODY_MAY - {folder}) & floors.keys():
            assert floors[other] > floors[folder], (folder, other)


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "thunder", "rich", "click", "sqlite3"}
    assert run_code(f"import sys, fusioncache; print({heavy} & set(sys.modules))") == "set()\n"


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'fusioncache' has no attribute 'Cash'"):
        _ = fusioncache.Cash
    assert set(fusioncache.__all__) <= set(dir(fusioncache))
    for name in fusioncache.__all__:
        assert getattr(fusioncache, name) is not None


def test_thunder_and_fusioncache_are_imported_in_any_order():
    # Modules that need Thunder's names at once import Thunder while they are being imported.
    modules = ("thunder_adapter.api", "accelerators.programs.build", "backends.refused_operations")
    orders = ["thunder, fusioncache", *(f"fusioncache.{module}, thunder" for module in modules)]
    uses = [f"import {order}; assert thunder.get_executor('fusioncache')" for order in orders]
    uses += ["import fusioncache; fusioncache.executors()", "import fusioncache; fusioncache.Plugin()"]
    # Forks of a process that has torch and its parts that Thunder imports, which takes most of the time.
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
    assert run_code(program).splitlines() == ["True"] * len(uses)


TESTS = ROOT / "tests"
OTHER_FOLDERS = {"helpers", "programs", "repository", "benchmarks", "golden", "spec"}
FILES = sorted(TESTS.rglob("*.py"))
THUNDERS = {"_call_ctx", "_implmap"}
"""Attributes of Thunder that the package sets as well."""
PARTS = {"_Compiling", "_HEADER", "_current_device", "_current_stream", "_get_device", "_left_uninitialized", "_memset"}
PARTS |= {"_nvfuser", "_packed", "_refuse_arguments", "_remove"}
"""Parts of a stored run of nvFuser, which are tested one by one without a GPU."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not name.endswith("_") and name not in PARTS


@cache
def find_private_names() -> frozenset[str]:
    """Returns all names that the package defines for one file or class only."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return frozenset(filter(is_private, names - THUNDERS))


def find_root(node: ast.AST) -> str:
    """Returns the name that an expression such as ``name.attribute().attribute`` starts with, or nothing."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


OF_OTHERS = {"_constraints", "_fields", "_lookasides", "_modules", "_name", "_parameters", "_replace"}
OF_OTHERS |= {"_setup_frame_and_run_python_function"}
"""Private names of ours that objects of Thunder, torch or Python have as well."""


def find_uses(tree: ast.AST) -> Iterator[str]:
    """Yields uses of names that are private to other files."""
    ours = {"fusioncache", *(path.stem for path in HELPERS.iterdir())}
    imports = list(find_imports(tree))
    others = {here for module, _, here in imports if module.partition(".")[0] not in ours} | {"self", "cls"}
    yield from (
        f"{module}.{name}" for module, name, _ in imports if module.partition(".")[0] in ours and is_private(name)
    )
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Call) or getattr(node, "attr", None) in OF_OTHERS:
            continue
        if isinstance(node, ast.Attribute) and node.attr in find_private_names() and find_root(node) not in others:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "delattr", "object"):
            texts = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from (text for text in texts if text.rpartition(".")[2] in find_private_names() - OF_OTHERS)


def test_folders_are_those_of_the_package():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert {path.relative_to(TESTS).parts[0] for path in FILES if path.parent != TESTS} <= folders | OTHER_FOLDERS


def test_no_two_tests_have_one_name_and_none_is_imported():
    """Folders of tests are no packages, so that pytest imports each by its name alone."""
    names = [path.name for path in FILES if path.name.startswith("test_")]
    names += [name for path in FILES for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    imports = re.compile(r"^\s*(?:from|import) test_\w+", re.MULTILINE)
    assert not [path for path in FILES if imports.search(path.read_text())]


def test_nothing_private_to_another_file_is_used():
    found = {str(path.relative_to(TESTS)): list(find_uses(ast.parse(path.read_text()))) for path in FILES}
    assert not {name: uses for name, uses in found.items() if uses}


_PRIVATE = (
    r"nobody|somebody|anybody|whoever|vouch\w*|nursery|offspring|lessons?|witness\w*|bystanders?|tenants?|promise\w*"
    r"|foretold|foresight|indifferen\w*|movers?"
)
_RIDDLES = r"bury|what it is that|tells|(?:is|are) told|taken down|those who|of (?:theirs|ours)|whatever"
_PRIVATE_IN_CODE = re.compile(rf"(?:\b|_)(?:{_PRIVATE}|{_RIDDLES})(?:\b|_)", re.IGNORECASE)
"""Words that no code, comment or document of the package contains."""
_BANNED = re.compile(
    rf"\b(?:{_PRIVATE}|bur(?:y|ied)|handed over|taken out|took the place of|was there before"
    r"|(?:its|their) own sizes|general hits?|kept code|not kept|keeps nothing|lies? over each other|travel together"
    r"|beside collectives|is told to)\b",
    re.IGNORECASE,
)
"""Private words, and phrases for which the field has a term. ``docs/glossary.md`` has the terms."""


def _list_literals(path: Path) -> Iterator[tuple[str, str]]:
    """Yields place and text of each string of a module, except docstrings, which are for developers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _list_texts() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ((where, text) for where, text in _list_literals(path) if " " in text)
    for pattern in ("fusioncache/report/page/*.html", "docs/api.md", "docs/commands/*.md", "tests/cli/golden/*.txt"):
        yield from ((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in ROOT.glob(pattern))
    reasons = {"reason": 1}
    stats = Stats(
        bypasses=reasons, own_sizes=reasons, taken_out=reasons, unkept=reasons, programs_refused=reasons,
        passes_repeated=reasons, programs_interpreted=reasons, not_captured=reasons, captures=1, verified=1,
    )  # fmt: skip
    yield "Stats as HTML", stats._repr_html_()


def test_users_read_the_terms_of_the_field():
    texts = list(_list_texts())
    assert {"random numbers", "in-place effects"} <= {text for _, text in texts}
    assert not [f"{where}: {word[0]}" for where, text in texts for word in _BANNED.finditer(text)]
    assert _BANNED.search("Not kept: busy") and _PRIVATE_IN_CODE.search("find_promise(values)")


def test_the_code_and_the_documents_have_the_terms_of_the_field():
    patterns = ("fusioncache/**/*.py", "*.md", "docs/**/*.md", "benchmarks/**/*.py")
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        found = _PRIVATE_IN_CODE.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found[0]}"
