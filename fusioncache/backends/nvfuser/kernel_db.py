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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusioncache.backends.api import NotPersistable, NotPersistableNow
from fusioncache.process import forks

OPTION = "kernel_db"
"""nvFuser's option that makes it use its database."""

_FOLDER, _TABLE = "nvfuser_kernel_db", "db.csv"
_HEADER = "kernel_signature,compile_args,kernel_code_file,cubin_file"
_ROW = re.compile(r"([^,]+),([^,]*),(kernel_\d+\.cu),(kernel_\d+\.cubin)")
_PLACE = "TMPDIR"
_ELF = b"\x7fELF"

Options = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """A compiled kernel.

    Attributes:
        name: of its function in the cubin.
        code: in CUDA.
        cubin: the file.
        options: of nvFuser, with which it was compiled.
    """

    name: str
    code: str
    cubin: Path
    options: Options


class KernelDatabase:
    """nvFuser's database in this process. One compile at a time, so that each row is known to be of one of them."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._place: Path | None = None
        self._process = os.getpid()
        self._opened = False
        self._lost = False
        self._read = 0
        self._rows: dict[str, list[Row]] = {}
        self._elsewhere: tuple[str | None] | None = None
        forks.register(self)

    def compiling[T](self, options: Options, compile_: Callable[[], T]) -> T:
        """Compiles with the option on, and takes note of what that adds.

        Args:
            options: that nvFuser is told otherwise.
            compile_: compiles, with ``OPTION`` among the options.

        Raises:
            Whatever ``compile_`` raises.
        """
        with self._lock:
            try:
                if self._opened or self._lost:
                    return compile_()
                with self._opening():
                    return compile_()
            finally:
                self._note(options)

    def rows(self, names: Sequence[str], code: str, options: Options) -> tuple[Row, ...]:
        """The rows of a run, by the names of its kernels.

        Args:
            names: of the kernels that it launches.
            code: of all the kernels of the run, as nvFuser says it.
            options: with which it was compiled.

        Raises:
            NotPersistable: if not exactly one row fits each.
        """
        with self._lock:
            if not self._opened or self._process != os.getpid():
                raise NotPersistableNow("nvFuser's kernel database was opened by somebody else")
            return matching(self._rows, names, code, options)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """The directory for temporary files is another one meanwhile, also for other threads: it is there for all."""
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="fusioncache-kernels-"))
            atexit.register(_remove, self._place, self._process)
        self._elsewhere = (os.environ.get(_PLACE),)
        os.environ[_PLACE] = str(self._place)
        try:
            yield
        finally:
            self.after_fork()
            self._opened = (self._place / _FOLDER / _TABLE).is_file()

    def after_fork(self) -> None:
        """Sets the directory for temporary files right. A forked child needs it where another thread was opening."""
        elsewhere, self._elsewhere = self._elsewhere, None
        if elsewhere is None:
            return
        (before,) = elsewhere
        if before is None:
            os.environ.pop(_PLACE, None)
        else:
            os.environ[_PLACE] = before

    def must_be_open(self) -> None:
        """Says that kernels were compiled. If the database is not open by now, it will never be: it is elsewhere."""
        with self._lock:
            self._lost = not self._opened

    def _note(self, options: Options) -> None:
        if not self._opened or self._place is None:
            return
        folder = self._place / _FOLDER
        lines = (folder / _TABLE).read_text().split("\n")[:-1]
        for line in lines[max(self._read, 1) :]:
            row = _row(line, folder, options)
            if row is not None:
                self._rows.setdefault(row.name, []).append(row)
        self._read = len(lines)


def matching(
    known: dict[str, list[Row]] | dict[str, tuple[Row, ...]], names: Sequence[str], code: str, options: Options
) -> tuple[Row, ...]:
    """The row for each kernel of a run. Together their code is the run's, with nothing left.

    Raises:
        NotPersistable: if not exactly one row fits each, or there is other code.
    """
    if len(set(names)) != len(names):
        raise NotPersistable("two kernels of one name")
    found = []
    for name in names:
        rows = [row for row in known.get(name, ()) if row.code in code]
        if len(rows) != 1:
            raise NotPersistableNow(f"{len(rows)} rows of nvFuser's kernel database for one kernel")
        if rows[0].options != options:
            # The database goes by code alone, so that what was compiled with these options is not in it.
            raise NotPersistableNow("a kernel that is known with other options of nvFuser")
        found.append(rows[0])
    in_order = sorted(found, key=lambda row: code.index(row.code))
    if "\n".join(row.code for row in in_order) != code:
        raise NotPersistable("code of kernels that were not launched")
    return tuple(found)


def read_cubin(row: Row) -> bytes:
    """The cubin of a row.

    Raises:
        NotPersistable: if it is none.
    """
    image = row.cubin.read_bytes()
    if not image.startswith(_ELF):
        raise NotPersistable("a kernel that is not compiled to the end")
    return image


@cache
def kernel_database() -> KernelDatabase:
    """That of this process."""
    return KernelDatabase()


def _row(line: str, folder: Path, options: Options) -> Row | None:
    match = _ROW.fullmatch(line)
    if match is None:
        return None
    return Row(match[1], (folder / match[3]).read_text(), folder / match[4], options)


def _remove(place: Path, process: int) -> None:
    if os.getpid() == process:  # and no child of it
        shutil.rmtree(place, ignore_errors=True)
