"""Counts the package's lines of code, those in the core, all lines, and files.

Without folders it counts this checkout, otherwise the package in each folder, side by side.

A line of code is neither blank nor a comment, and not part of a docstring or of another string statement.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from pathlib import Path

import click

_CORE = ("backends", "cache", "ir", "observe", "process", "store", "template", "thunder_adapter", "transform")
_SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_package(folder: Path) -> dict[str, int]:
    """Returns the counts of a package, by name."""
    texts = {path.relative_to(folder): path.read_text() for path in sorted(folder.rglob("*.py"))}
    lines = {path: count_lines(text) for path, text in texts.items()}
    return {
        "lines of code": sum(lines.values()),
        "of these in the core": sum(count for path, count in lines.items() if path.parts[0] in _CORE),
        "all lines": sum(len(text.splitlines()) for text in texts.values()),
        "files": len(texts),
    }


def count_lines(text: str) -> int:
    """Returns the number of lines of code of a file."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SPACE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the counts as one JSON object.")
def main(folders: tuple[Path, ...], json_file: Path | None) -> None:
    """Prints the counts of each package in a column."""
    paths = folders or (Path(__file__).resolve().parents[1],)
    counts = {str(path): count_package(path / "fusioncache") for path in paths}
    for name in next(iter(counts.values())):
        click.echo(f"{name:34} " + " ".join(f"{each[name]:>8,}" for each in counts.values()))
    if json_file:
        json_file.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
