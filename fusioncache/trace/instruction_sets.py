"""Keeps what TorchInductor found out about the CPU's instruction sets for later processes.

On a CPU, each process that uses TorchInductor asks whether a library with such instructions can be loaded, in up to
six child processes that import torch: ten seconds of CPU time. What a process found is kept beside TorchInductor's own
code, which is trusted as much, under a digest of all that the answer depends on: the code and the flags, compiler,
torch and TorchInductor's options for C++, what the kernel says of the CPU, libraries and paths of the child process.
Only "yes" is kept: a "no" may come from a disk that was full.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

from fusioncache.tracing.installation import install_more
from fusioncache.tracing.replacement import Replacement

logger = logging.getLogger("fusioncache")

_FOLDER = "fusioncache-instruction-sets"
_CPU = Path("/proc/cpuinfo")
_CPU_LINES = ("vendor_id", "model name", "microcode", "flags", "Features", "CPU implementer", "CPU part")
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TORCH_CUSTOM_PYTHONPATH", "ATEN_CPU_CAPABILITY")


def keep_instruction_sets() -> None:
    """Has TorchInductor ask once for each instruction set of a machine, rather than in each process. Never raises."""
    install_more("instruction sets", list_replacements)


def list_replacements() -> Iterator[Replacement]:
    """Yields what stands in for the function of TorchInductor's that asks."""
    from torch._inductor.cpu_vec_isa import VecISA

    yield Replacement(VecISA, "check_build", "8f332dd27f63e558", keep_proof)


def keep_proof(original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """Returns what answers from an earlier process where it can, and else asks the original."""

    @wraps(original)
    def check_build(self: Any, code: str) -> bool:
        try:
            proof = find_proof(self, code)
            if proof.exists():
                return True
        except Exception as error:  # whatever it is, TorchInductor asks
            logger.info("whether the CPU has %s is not known from an earlier process", self, exc_info=error)
            return original(self, code)
        works = original(self, code)
        if works:
            try:
                proof.parent.mkdir(parents=True, exist_ok=True)
                proof.touch()
            except OSError as error:
                logger.info("whether the CPU has %s is not kept", self, exc_info=error)
        return works

    return check_build


def find_proof(instruction_set: Any, code: str) -> Path:
    """Returns the file that is there if an earlier process built and loaded a library with these instructions.

    Args:
        instruction_set: a ``VecISA`` of TorchInductor's.
        code: of the library.
    """
    from torch._inductor.cpu_vec_isa import _get_isa_dry_compile_fingerprint
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    flags = instruction_set._arch_flags
    parts = (
        type(instruction_set).__qualname__,
        code,
        flags,
        repr(instruction_set._macro),
        _get_isa_dry_compile_fingerprint(flags),
        *_list_options(),
        *list_machine(),
        *(f"{name}={os.environ.get(name)}" for name in _VARIABLES),
    )
    text = "".join(f"{len(part)} {part}\n" for part in parts)
    return Path(cache_dir(), _FOLDER, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest())


def _list_options() -> Iterator[str]:
    """Yields how TorchInductor compiles C++, and where torch is."""
    import torch
    from torch._inductor import config

    yield from (f"{name}={getattr(config, name)!r}" for name in sorted(config._config) if name.startswith("cpp."))
    for path in sorted(Path(torch.__file__).parent.glob("lib/libtorch*.so*")):
        status = path.stat()
        yield f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def list_machine() -> tuple[str, ...]:
    """Returns what tells one machine from another, as far as the instructions of its CPU go."""
    lines = _CPU.read_text().partition("\n\n")[0].splitlines()
    known = [" ".join(line.split()) for line in lines if line.partition("\t")[0].strip() in _CPU_LINES]
    return (*known, platform.machine(), platform.node(), platform.release(), repr(platform.libc_ver()), sys.executable)
