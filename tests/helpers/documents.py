"""The code, the sessions and the commands that documents show."""

import re
import shutil
import subprocess
from pathlib import Path

from repository import DOCS, README, ROOT

DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
HAND_WRITTEN = tuple(path for path in DOCUMENTS if path != DOCS / "api.md" and DOCS / "commands" not in path.parents)
_FIGURE = re.compile(r"^<!-- figure: .*?^<!-- end of figure -->\n", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_PROGRAMS = ("fusioncache", "python", "python3.12", "pip", "make", "pytest", ".ci/run")
_PROGRAMS += ("git", "patch", "du", "tail", "jq")
_NO_COMMANDS = ("cli/ ", "store  ", "region  ", "run  ", "collective 1 is", "fusioncache: ")
"""Beginnings of blocks without a language that are drawings, tables or output of a program."""
_REDIRECT = re.compile(r"(?<=\s)>>? ?\S+")
_SHELL = f"""
set -eo pipefail
exec 3>&1
say() {{ local all; printf -v all '%s\\x1f' "$@"; printf '%s\\x1e' "$all" >&3; }}  # at once: a pipe runs two
for program in {" ".join(_PROGRAMS)}; do eval "function $program {{ say $program "'"$@"; }}'; done
cd() {{ :; }}
mktemp() {{ :; }}
"""
"""A script that runs no program: each one is a function that prints its name and arguments; others are not found."""


def read_blocks(language: str = "", path: Path = README) -> list[str]:
    """Returns the blocks of a document in one language; with ``""`` those without a language."""
    return [text for found, text in _BLOCK.findall(path.read_text()) if found == language]


def read_session(path: Path = README) -> list[tuple[str, str]]:
    """Returns each command line behind a ``$`` in a document, without its comment, and the output shown for it."""
    shown = []
    for block in read_blocks(path=path):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            shown.append((line.partition("  #")[0].strip(), output))
    return shown


def read_hand_written(path: Path) -> str:
    """Returns the text of a document without its generated figures."""
    return _FIGURE.sub("", path.read_text())


def read_commands(path: Path) -> list[list[str]]:
    """Returns the words of each command in blocks, sessions and sentences of a document, as a shell reads them."""
    text = read_hand_written(path)
    scripts = [line for line, _ in read_session(path)]
    for block in [*read_blocks(path=path), *read_blocks("bash", path)]:
        if not block.startswith((*_NO_COMMANDS, "$ ")) and "[OPTIONS]" not in block:
            scripts.append(block)
    scripts += [code for code in read_inline_code(text) if _begins_with_program(code)]
    return [words for script in scripts for words in _split_commands(script.replace(".venv/bin/", ""))]


def read_inline_code(text: str) -> list[str]:
    return _INLINE.findall(_BLOCK.sub("", text))


def _begins_with_program(code: str) -> bool:
    words = [word for word in code.removeprefix(".venv/bin/").split() if not re.match(r"[A-Z_]+=", word)]
    return words[:1] == [".ci/run"] or (len(words) > 1 and words[0] in _PROGRAMS)


def _split_commands(script: str) -> list[list[str]]:
    shell = [shutil.which("bash") or "bash", "-c", _SHELL + _REDIRECT.sub("", script)]
    nowhere = {"PATH": "/nowhere", "HOME": "/nowhere"}
    done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=ROOT, env=nowhere)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return [command.split("\x1f")[:-1] for command in done.stdout.split("\x1e")[:-1]]


def read_links(path: Path) -> list[str]:
    """Returns the targets of a document's links that lead to files and sections of this repository."""
    return [target for target in _LINK.findall(path.read_text()) if not target.startswith("http")]


def list_anchors(path: Path) -> set[str]:
    """Returns the anchors of a document's sections, as GitHub makes them of titles."""
    titles = _TITLE.findall(_BLOCK.sub("", path.read_text()))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def assert_shown(document: str, said: str) -> None:
    """Asserts that a command printed what a document shows, apart from seconds, ids, folders and line breaks."""
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
