"""The ways to compile that ``benchmarks/nvfuser_seconds`` compares. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Way = Literal["compile", "persist", "trace", "views", "in turns"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile every template once, in a process of its own.

    Attributes:
        name: as in ``--variants``.
        meaning: what differs.
        way: ``"compile"``; ``"persist"``, which also makes what another process can load; ``"trace"``, with a trace of
            nvFuser's own, which costs time; ``"views"``, without the views that come last; or ``"in turns"``, each
            template again and again, with one option off and with none.
        enable: nvFuser options that are on.
        disable: nvFuser options that are off.
        environment: variables of the process.
    """

    name: str
    meaning: str
    way: Way = "compile"
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def _without(*options: str, meaning: str) -> Variant:
    return Variant(f"no {'+'.join(options)}", meaning, disable=options)


_ARENA = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "268435456"}

_TCACHE, _ONE = "glibc.malloc.tcache_count=65535", "glibc.malloc.arena_max=1"

_ALL = (
    Variant("base", "as it is"),
    Variant("base again", "the same once more, for the spread"),
    Variant("trace", "with its own trace", "trace"),
    Variant("persist", "with all that the store does", "persist"),
    Variant("views", "views that come last are made by torch, and no part of the definition", "views"),
    Variant("in turns", "options that change no kernel", "in turns", disable=("parallel_compile",)),
    _without("nvtx", meaning="no ranges for profilers"),
    _without("parallel_compile", meaning="kernels of a definition one after the other"),
    _without("greedy_scheduler", meaning="a scheduler less to try"),
    _without("resize_scheduler", meaning="a scheduler less to try"),
    _without("greedy_scheduler", "resize_scheduler", meaning="two schedulers less to try"),
    _without("expr_simplify", meaning="indices are not simplified"),
    _without("index_hoist", meaning="indices are not moved out of loops"),
    _without("predicate_elimination", meaning="predicates are not simplified"),
    _without("magic_zero", meaning="loops may be unrolled by NVRTC alone"),
    _without("kernel_reuse", meaning="no look for a kernel of other sizes"),
    _without("compile_to_sass", meaning="the driver compiles PTX"),
    _without("nvrtc_caching", meaning="NVRTC keeps nothing on disk"),
    Variant("ptxas 1", "the assembler optimizes less", environment={"NVFUSER_JIT_OPT_LEVEL": "1"}),
    Variant("arena", "glibc asks the kernel for memory rarely", environment=_ARENA),
    Variant("tcache", "glibc keeps all small pieces of memory for its thread", environment={"GLIBC_TUNABLES": _TCACHE}),
    Variant("tcache+arena", "both", environment={"GLIBC_TUNABLES": _TCACHE, **_ARENA}),
    Variant("tcache+one arena", "all threads share memory", environment={"GLIBC_TUNABLES": f"{_TCACHE}:{_ONE}"}),
    Variant("huge pages", "glibc's memory in huge pages", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
)
VARIANTS = {variant.name: variant for variant in _ALL}


def preload_library(file: Path) -> Variant:
    """Returns the way in which a library is loaded first, such as one that allocates memory otherwise."""
    loaded = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(file.resolve())]))
    return Variant(f"with {file.name}", "a library of its own for memory", environment={"LD_PRELOAD": loaded})
