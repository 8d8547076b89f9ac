"""What kept code depends on: ingredients of a key."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fusioncache.backends.inductor.signature import FORMAT


def environment() -> Mapping[str, str]:
    """What kept code depends on beyond ``Inductor.environment``, by name."""
    import torch
    from torch._inductor import config

    build = f"{torch.__version__} {torch.version.git_version} C++11 ABI {torch._C._GLIBCXX_USE_CXX11_ABI}"
    return {
        "inductor format": str(FORMAT),
        "inductor torch": build,
        "inductor python": str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
        "inductor platform": _platform(),
        "inductor processor": f"{torch.backends.cpu.get_cpu_capability()} {_vector_units()}\n{_processor()}",
        "inductor compiler": _compiler(tuple(map(str, filter(None, _listed(config.cpp.cxx))))),
    }


@cache
def _platform() -> str:
    # Kernels call the C library's mathematical functions where there are none for vectors.
    return " ".join([sys.platform, platform.machine(), *platform.libc_ver()])


@cache
def _vector_units() -> str:
    """Among which TorchInductor picks. Which one it takes it finds out by compiling, and so by what is in the key."""
    import torch

    asked = ("_is_avx2_supported", "_is_avx512_supported", "_is_vnni_supported", "_is_amx_tile_supported")
    found = [name.removeprefix("_is_").removesuffix("_supported") for name in asked if getattr(torch.cpu, name, bool)()]
    return " ".join([*found, f"wanted {os.environ.get('ATEN_CPU_CAPABILITY', '')}"])


@cache
def _processor() -> str:
    """Everything that the processor can do, as a digest: kernels are compiled for just this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = {line for line in lines if re.match(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b", line)}
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


@cache
def _compiler(candidates: tuple[str, ...]) -> str:
    """The first line that the C++ compiler says of itself, or nothing if there is none."""
    for path in filter(None, map(shutil.which, candidates)):
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return said.splitlines()[0] if said else ""
    return ""
