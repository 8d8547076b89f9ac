"""Source in colours, where a person looks."""

from __future__ import annotations

import os
import sys


def coloured() -> bool:
    """Whether stdout is a terminal that may have colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def highlighted(text: str, language: str) -> str:
    """The text, with colours if it goes to a terminal that may have them."""
    if not coloured():
        return text
    from pygments import highlight
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import get_lexer_by_name

    return str(highlight(text, get_lexer_by_name(language), TerminalFormatter()))
