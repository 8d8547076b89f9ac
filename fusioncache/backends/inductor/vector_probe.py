"""Probes which vector instructions of the CPU TorchInductor can use, and keeps the answer for later processes.

TorchInductor asks whether a library with such instructions can be built and loaded. It loads each in a child process
that imports torch, up to six in each process: ten seconds of CPU time. Here the library is loaded into this process. A
"yes" is kept beside TorchInductor's own code, which is trusted as much, under a digest of all that the answer depends
on: the code and the flags, compiler, torch and TorchInductor's options for C++, the kernel's description of the CPU,
libraries and paths. A "no" is not kept: it may come from a full disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger("fusioncache")

_FOLDER = "fusioncache-instruction-sets"
_CPU = Path("/proc/cpuinfo")
_CPU_LINES = ("vendor_id", "model name", "microcode", "flags", "Features", "CPU implementer", "CPU part")
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TORCH_CUSTOM_PYTHONPATH", "ATEN_CPU_CAPABILITY")


def can_use(instruction_set: Any, code: str) -> bool:
    """True if a library with these instructions can be built and loaded, now or by an earlier process.

    The library is loaded into this process. Loading runs none of its code, and TorchInductor only asks for what the CPU
    has: what can go wrong is that the compiler does not know the instructions, or that a symbol is missing.

    Args:
        instruction_set: a ``VecISA`` of TorchInductor's.
        code: of the library.
    """
    if is_proven(instruction_set, code):
        return True
    works = build_and_load(instruction_set, code)
    if works:
        keep_proof(instruction_set, code)
    return works


def is_proven(instruction_set: Any, code: str) -> bool:
    """True if an earlier process built and loaded a library with these instructions."""
    try:
        return find_proof(instruction_set, code).exists()
    except Exception as error:  # whatever it is, it can be tried
        logger.info("whether the CPU has %s is not known from an earlier process", instruction_set, exc_info=error)
        return False


def keep_proof(instruction_set: Any, code: str) -> None:
    """Keeps for later processes that such a library was built and loaded. Never raises."""
    try:
        proof = find_proof(instruction_set, code)
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()
    except Exception as error:  # whatever it is, a later process tries
        logger.info("whether the CPU has %s is not stored", instruction_set, exc_info=error)


def forget_probes() -> None:
    """Has TorchInductor probe again in this process."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    for kind in {type(isa) for isa in cpu_vec_isa.supported_vec_isa_list} | {cpu_vec_isa.VecISA}:
        for member in vars(kind).values():
            if hasattr(member, "cache_clear"):
                member.cache_clear()


def build_and_load(instruction_set: Any, code: str) -> bool:
    """True if a library with these instructions can be built and loaded into this process."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions

    with tempfile.TemporaryDirectory(prefix="fusioncache-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(code)
        options = CppTorchOptions(vec_isa=instruction_set, warning_all=False)
        builder = CppBuilder("probe", [str(source)], options, folder)
        try:
            builder.build()
            ctypes.CDLL(builder.get_target_file_path())
        except Exception:
            return False
    return True


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
    """Returns the properties of a machine on which the instructions of its CPU depend."""
    lines = _CPU.read_text().partition("\n\n")[0].splitlines()
    known = [" ".join(line.split()) for line in lines if line.partition("\t")[0].strip() in _CPU_LINES]
    return (*known, platform.machine(), platform.node(), platform.release(), repr(platform.libc_ver()), sys.executable)
