"""nvFuser's database of compiled kernels, in a directory of this process, and which of its rows belong to a run.

nvFuser opens its database once in a process, at the first kernel that it compiles with the option on, in the directory
for temporary files as it is then. It writes the code and the cubin of each kernel, and a row with the kernel's name.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusioncache.backends.nvfuser.definition import Switches
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process import forks

OPTION = "kernel_db"
"""nvFuser's option that makes it use its database."""

_FOLDER, _TABLE = "nvfuser_kernel_db", "db.csv"
_ROW = re.compile(r"([^,]+),([^,]*),(kernel_\d+\.cu),(kernel_\d+\.cubin)")
_DIRECTORY_VARIABLE = "TMPDIR"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel: its function's name, its CUDA, the file of its cubin, and the options that it was compiled with."""

    name: str
    code: str
    cubin: Path
    options: Switches


class KernelDatabase:
    """nvFuser's database in this process. One compile at a time, so that each row is known to be of one of them."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._directory: Path | None = None
        self._process = os.getpid()
        self._opened = False
        self._lost = False
        self._read = 0
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._replaced: tuple[str | None] | None = None
        forks.register(self)

    def compile[T](self, options: Switches, compile_: Callable[[], T]) -> T:
        """Compiles with ``OPTION`` on beside these options, and reads what that adds to the database."""
        with self._lock:
            try:
                if self._opened or self._lost:
                    return compile_()
                with self._open():
                    return compile_()
            finally:
                self._read_rows(options)

    def rows(self, names: Sequence[str], code: str, options: Switches) -> tuple[Row, ...]:
        """Returns the row of each kernel of a run: see ``match_rows``.

        Raises:
            Declined: if not exactly one row fits each, or the database is another one.
        """
        with self._lock:
            if not self._opened or self._process != os.getpid():
                raise Declined("nvFuser's kernel database was opened by another library", Scope.STORING_NOW)
            return match_rows(self._rows, names, code, options)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Makes the directory for temporary files another one meanwhile. There is only one, for all threads."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fusioncache-kernels-"))
            atexit.register(_remove, self._directory, self._process)
        self._replaced = (os.environ.get(_DIRECTORY_VARIABLE),)
        os.environ[_DIRECTORY_VARIABLE] = str(self._directory)
        try:
            yield
        finally:
            self.after_fork()
            self._opened = (self._directory / _FOLDER / _TABLE).is_file()

    def after_fork(self) -> None:
        """Sets the directory for temporary files right. A forked child needs it where another thread was opening."""
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            return
        (before,) = replaced
        if before is None:
            os.environ.pop(_DIRECTORY_VARIABLE, None)
        else:
            os.environ[_DIRECTORY_VARIABLE] = before

    def note_compiled(self) -> None:
        """Takes note that kernels were compiled. If the database is not open by now, it is elsewhere for good."""
        with self._lock:
            self._lost = not self._opened

    def _read_rows(self, options: Switches) -> None:
        if not self._opened or self._directory is None:
            return
        folder = self._directory / _FOLDER
        lines = (folder / _TABLE).read_text().split("\n")[:-1]
        for line in lines[max(self._read, 1) :]:
            match = _ROW.fullmatch(line)
            if match is not None:
                row = Row(match[1], (folder / match[3]).read_text(), folder / match[4], options)
                self._rows[row.name].append(row)
        self._read = len(lines)


def match_rows(
    known: Mapping[str, Sequence[Row]], names: Sequence[str], code: str, options: Switches
) -> tuple[Row, ...]:
    """Returns the row for each kernel of a run. Together their code is the run's, with nothing left.

    The database's rows are given by their kernels' names, and of the run the names of its kernels, in the order of its
    launches, their CUDA, as nvFuser says it, and the options that it was compiled with.

    Raises:
        Declined: if not exactly one row fits each, or there is other code.
    """
    if len(set(names)) != len(names):
        raise Declined("two kernels of one name", Scope.STORING)
    found = []
    for name in names:
        rows = [row for row in known.get(name, ()) if row.code in code]
        if len(rows) != 1:
            raise Declined(f"{len(rows)} rows of nvFuser's kernel database for one kernel", Scope.STORING_NOW)
        if rows[0].options != options:
            # The database goes by code alone, so that what was compiled with these options is not in it.
            raise Declined("a kernel that is known with other options of nvFuser", Scope.STORING_NOW)
        found.append(rows[0])
    ordered = sorted(found, key=lambda row: code.index(row.code))
    if "\n".join(row.code for row in ordered) != code:
        raise Declined("code of kernels that were not launched", Scope.STORING)
    return tuple(found)


def read_cubin(row: Row) -> bytes:
    """Returns the cubin of a row.

    Raises:
        Declined: if it is not a cubin.
    """
    image = row.cubin.read_bytes()
    if not image.startswith(_ELF):
        raise Declined("a kernel that is not compiled to the end", Scope.STORING)
    return image


@cache
def kernel_database() -> KernelDatabase:
    """Returns the database of this process."""
    return KernelDatabase()


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # and no child of it
        shutil.rmtree(directory, ignore_errors=True)
