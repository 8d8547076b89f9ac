"""Verify mode for programs: a stored one is derived again, and its traces are compared with the new ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from fusioncache.accelerators.programs.text import ProgramText
from fusioncache.process.secrets import blur, hide_line, hide_texts, reveal_texts
from fusioncache.verification.verifier import VerificationError

_VERIFIED = re.compile(r"\b(\w+)_verified_\d+\b")
"""A call of a template whose results are compared; ``Verifier.verify`` has given it its name."""
_MOST_LINES = 40


def compare_programs(name: str, stored: ProgramText, entry: Any) -> None:
    """Compares the traces of a stored program with what Thunder derived just now.

    Args:
        name: of the model.
        stored: the program.
        entry: Thunder's own.

    Raises:
        VerificationError: if any trace is another one.
    """
    traces = {
        "prologue": (stored.prologue, entry.prologue_traces),
        "forward": (stored.computation, entry.computation_traces),
        "backward": (stored.backward, entry.backward_traces),
        "epilogue": (stored.epilogue, entry.epilogue_traces),
    }
    for what, (text, derived) in traces.items():
        try:
            before = list(_normalize(reveal_texts(text.source))) if text else []
        except ValueError:  # which is no difference: the program does not fit here
            return
        after = list(_normalize(_print_last(what, derived))) if derived else []
        if before != after:
            lines = list(difflib.unified_diff(before, after, "stored", "derived", lineterm=""))
            shown = blur("\n".join(lines[:_MOST_LINES]))
            raise VerificationError(
                f"the stored program of {name} is not what Thunder makes now: its {what} trace differs.\n{shown}"
            )


def _print_last(what: str, traces: Any) -> str:
    return str(traces[-1].python(include_decorators=what != "prologue"))


def _normalize(source: str) -> Iterator[str]:
    """Yields the statements of a trace without comments, which have seconds and places of files, and without texts."""
    try:
        source = hide_texts(source)
    except ValueError:
        source = "\n".join(map(hide_line, source.splitlines()))
    for line in source.splitlines():
        statement = line.partition("  #")[0].rstrip()
        if statement and not statement.lstrip().startswith("#"):
            yield _VERIFIED.sub(r"\1", statement)
