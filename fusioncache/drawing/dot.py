"""Pictures in graphviz's language, and drawn by graphviz."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

_SHAPES = {"input": "ellipse", "size": "ellipse", "op": "box", "output": "ellipse"}
_SECONDS = 60.0


def dot_text(picture: nx.DiGraph, title: str) -> str:
    """Returns the picture as DOT. It is the same for the same graph, to the letter."""
    lines = [f"digraph {_quote(title)} {{", '  node [fontname="monospace", fontsize=10];']
    for name, node in picture.nodes(data="node"):
        label = "\n".join(filter(None, [node.label, node.detail]))
        lines.append(f"  {name} [shape={_SHAPES[node.kind]}, label={_quote(label)}, tooltip={_quote(node.text)}];")
    lines += [f"  {start} -> {end};" for start, end in picture.edges]
    return "\n".join([*lines, "}"]) + "\n"


def graphviz_svg(dot: str) -> str | None:
    """Returns the SVG that graphviz makes; None if it is not installed, or fails."""
    command = ["dot", "-Tsvg"]
    try:
        return subprocess.run(command, input=dot, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
