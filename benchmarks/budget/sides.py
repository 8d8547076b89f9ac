"""The two packages that ``benchmarks/budget`` compares, each in a folder of its own, with compiled bytecode.

Both are copies, so that only their code differs, and neither changes while processes run.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.common.environment import find_commit
from benchmarks.common.processes import ROOT

CURRENT, BASE = "current", "base"
_PACKAGE = "fusioncache"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two packages.

    Attributes:
        name: ``CURRENT`` or ``BASE``.
        folder: that contains the package.
        commit: of the package, if known.
        digest: of the names and texts of its modules.
        accelerators: that it may use; None for all.
    """

    name: str
    folder: Path
    commit: str | None
    digest: str
    accelerators: tuple[str, ...] | None = None


def copy_current(parent: Path, commit: str | None) -> Side:
    """Returns the package of this checkout, copied to a folder in ``parent``."""
    return _copy_package(CURRENT, ROOT, parent, commit)


def copy_base(parent: Path, source: Path | None, commit: str) -> Side:
    """Returns the base, copied to a folder in ``parent``.

    Args:
        parent: where the folder is made.
        source: a folder with the package; None to take it from git.
        commit: to take from git. With ``source``, the side has the commit of that checkout, if it is one.

    Raises:
        click.UsageError: if there is no package, or git does not have the commit.
    """
    if source is None:
        return _take_from_git(parent, commit)
    if not (source / _PACKAGE / "__init__.py").is_file():
        raise click.UsageError(f"--base {source} has no folder {_PACKAGE} with the package of the base")
    return _copy_package(BASE, source, parent, find_commit(source))


def _copy_package(name: str, source: Path, parent: Path, commit: str | None) -> Side:
    shutil.copytree(source / _PACKAGE, parent / name / _PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    return _finish(name, parent / name, commit)


def _take_from_git(parent: Path, commit: str) -> Side:
    try:
        name = _ask_git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
        content = _ask_git("archive", name, _PACKAGE)
    except (OSError, subprocess.CalledProcessError) as error:
        message = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)
        advice = "pass --base FOLDER, a folder with the package of the base"
        raise click.UsageError(f"git does not have the package of commit {commit} ({message}): {advice}") from None
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(parent / BASE, filter="data")
    return _finish(BASE, parent / BASE, name)


def _ask_git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


def _finish(name: str, folder: Path, commit: str | None) -> Side:
    compileall.compile_dir(folder, quiet=2)
    return Side(name, folder, commit, _digest_modules(folder))


def _digest_modules(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()
