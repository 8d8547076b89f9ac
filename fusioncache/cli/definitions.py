"""The line of source that defines a name, found in the files of modules: nothing is imported or run for it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fusioncache.process.secrets import hide_line

_INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders that packages are installed to."""


def find_definition(name: str) -> str | None:
    """Returns where a function, a class or a global is defined, with the line as it is there; None if it is not found.

    The path of an installed package begins with the package's name, so that it is short and the same on every machine.

    Args:
        name: with its module's, such as ``torch.nn.functional.silu``.
    """
    parts = name.replace(":", ".").replace(" ", ".").split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for length in range(len(parts) - 1, 0, -1):
        for file in _find_files(parts[:length]):
            line = _find_line(file, parts[length:])
            if line is not None:
                return line
    return None


def _find_files(module: Sequence[str]) -> Iterator[Path]:
    """Yields the files that a module may be, as Python would find them from here."""
    for folder in dict.fromkeys([os.getcwd(), *sys.path]):
        start = Path(folder, *module)
        for file in (start.with_suffix(".py"), start / "__init__.py"):
            if file.is_file():
                yield file


def _find_line(file: Path, names: Sequence[str]) -> str | None:
    with suppress(OSError, SyntaxError, ValueError):
        source = file.read_text(encoding="utf-8")
        number = _find_number(ast.parse(source), names)
        if number is not None:
            return f"{shorten_file(file)}:{number}: {hide_line(source.split('\n')[number - 1].strip())}"
    return None


def shorten_file(file: Path) -> Path:
    """Returns the path of a file; of one of an installed package what begins with the package's name."""
    installed = next((folder for folder in file.parents if folder.name in _INSTALLED), None)
    return file.relative_to(installed) if installed else file


def _find_number(scope: ast.AST, names: Sequence[str]) -> int | None:
    """Returns the number of the line that defines the last of these names, each inside of the one before."""
    for node in ast.iter_child_nodes(scope):
        if names[0] in _defined_by(node):
            if len(names) == 1:
                return getattr(node, "lineno", None)
            found = _find_number(node, names[1:])
            if found is not None:
                return found
    return None


def _defined_by(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=targets):
            return tuple(target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
    return ()
