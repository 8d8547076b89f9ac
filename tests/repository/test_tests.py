"""The shape of the tests: folders are those of the package, and a test asks nothing that is another file's own."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from repository import HELPERS, PACKAGE, ROOT

TESTS = ROOT / "tests"
NO_ROOMS = {"helpers", "programs", "repository", "benchmarks", "golden", "spec"}
FILES = sorted(TESTS.rglob("*.py"))
THUNDERS = {"_call_ctx", "_implmap"}
"""Attributes of Thunder's, which the package sets as well."""
PARTS = {"_Compiling", "_HEADER", "_current_device", "_current_stream", "_get_device", "_left_uninitialized", "_memset"}
PARTS |= {"_nvfuser", "_packed", "_refuse_arguments", "_remove"}
"""Parts of a stored run of nvFuser's, which without a GPU are tested one by one."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not name.endswith("_") and name not in PARTS


@cache
def find_private_names() -> frozenset[str]:
    """Returns what the package defines for one file or class only, whatever that is."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return frozenset(filter(is_private, names - THUNDERS))


def find_imports(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yields the module that each name is imported from, its name there and its name here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)


def find_root(node: ast.AST) -> str:
    """Returns the name that an expression such as ``name.attribute().attribute`` starts with, or nothing."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


OF_OTHERS = {"_constraints", "_fields", "_lookasides", "_modules", "_name", "_parameters", "_replace"}
OF_OTHERS |= {"_setup_frame_and_run_python_function"}
"""Private names of ours that Thunder's, torch's or Python's own objects have as well."""


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
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert {path.relative_to(TESTS).parts[0] for path in FILES if path.parent != TESTS} <= rooms | NO_ROOMS


def test_no_two_tests_have_one_name_and_none_is_imported():
    """Folders of tests are no packages, so that pytest imports each by its name alone."""
    names = [path.name for path in FILES if path.name.startswith("test_")]
    assert len(names) == len(set(names))
    imports = re.compile(r"^\s*(?:from|import) test_\w+", re.MULTILINE)
    assert not [path for path in FILES if imports.search(path.read_text())]


def test_nothing_private_to_another_file_is_used():
    found = {str(path.relative_to(TESTS)): list(find_uses(ast.parse(path.read_text()))) for path in FILES}
    assert not {name: uses for name, uses in found.items() if uses}
