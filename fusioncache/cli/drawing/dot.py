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


_INSTALL = "install graphviz ('apt install graphviz', 'brew install graphviz' or 'conda install graphviz')"
_CHECK = "see whether 'dot -v' names the format"


def draw(dot: str, format_: str) -> bytes:
    """Returns the picture that graphviz's program ``dot`` makes.

    Args:
        dot: the picture in graphviz's language.
        format_: such as ``svg``, ``png`` or ``pdf``.

    Raises:
        RuntimeError: if the program is not installed, or fails.
    """
    command = ["dot", f"-T{format_}"]
    try:
        return subprocess.run(command, input=dot.encode(), capture_output=True, timeout=_SECONDS, check=True).stdout
    except OSError as error:
        raise RuntimeError(f"graphviz's program dot cannot be started ({error.strerror}): {_INSTALL}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"graphviz's program dot took longer than {_SECONDS:.0f} s: {_CHECK}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        reason = said or f"status {error.returncode}"
        raise RuntimeError(f"graphviz's program dot failed ({reason}): {_CHECK}") from error


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
