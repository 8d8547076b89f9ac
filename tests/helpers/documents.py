"""The code and the sessions that documents show."""

import re
from pathlib import Path

from repository import DOCS, README, ROOT

DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)


def read_blocks(language: str = "", path: Path = README) -> list[str]:
    """The blocks of a document in one language; ``""`` for those that name none."""
    return [text for found, text in _BLOCK.findall(path.read_text()) if found == language]


def read_session(path: Path = README) -> list[tuple[str, str]]:
    """Each command line that a document shows behind a ``$``, without its comment, with what it prints."""
    shown = []
    for block in read_blocks(path=path):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            shown.append((line.partition("  #")[0].strip(), output))
    return shown


def read_links(path: Path) -> list[str]:
    """The targets of a document's links that lead to files and sections of this repository."""
    return [target for target in _LINK.findall(path.read_text()) if not target.startswith("http")]


def list_anchors(path: Path) -> set[str]:
    """The anchors of a document's sections, as GitHub makes them of titles."""
    titles = _TITLE.findall(_BLOCK.sub("", path.read_text()))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def assert_shown(document: str, said: str) -> None:
    """Whether a command says what a document shows of it, in the same order. ``...`` on a line stands for anything.

    What differs from machine to machine is not compared: seconds, ids, names of runs, the folder that packages are in,
    and where lines are broken.
    """
    text, place = _comparable(said), 0
    for part in re.split(r"^\.\.\.$", document, flags=re.MULTILINE):
        wanted = _comparable(part)
        found = text.find(wanted, place)
        assert found >= 0, f"{wanted!r} is not in {text[place:]!r}"
        place = found + len(wanted)


def _comparable(text: str) -> str:
    text = re.sub(r"\b[0-9a-f]{12}(?:[0-9a-f]{52}\b|\.\.\.|\b)", "ID", text)
    text = re.sub(r"_[0-9a-f]{8}\b", "_ID", text)
    text = re.sub(r"\b\d+\.\d{3}\b", "SECONDS", text)
    text = re.sub(r"\b\d[\d.,e+]* m?s\b", "TIME", text)
    text = re.sub(r"\S*/site-packages/", "", text)
    text = re.sub(r"^(old  |new  |).* · .* · .*  \(run [0-9a-f]{8}\)$", r"\1RUN", text, flags=re.MULTILINE)
    return " ".join(text.split())
