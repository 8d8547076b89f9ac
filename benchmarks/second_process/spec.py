"""Who is compared in ``benchmarks/second_process``, and which parts a first step has. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLD, WARM = "cold", "warm"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to start.

    Attributes:
        name: as in ``--ways``.
        worker: the module that measures it.
        tracing: what that module is told of the tracing: see ``benchmarks/first_step/spec.py``.
        keeps: whether a second process finds anything.
        programs: whether fusioncache keeps programs.
    """

    name: str
    worker: str
    tracing: str
    keeps: bool = True
    programs: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its processes."""
        return {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_PROGRAMS": str(int(self.programs))}


_OURS, _THUNDER = "benchmarks.second_process.worker", "benchmarks.second_process.thunder"
_ALL = (
    Way("thunder", _THUNDER, "own", keeps=False),
    Way("templates", _OURS, "fast"),
    Way("programs", _OURS, "fast", programs=True),
    Way("torch.compile", "benchmarks.first_step.peer", "torch.compile"),
)
WAYS = {way.name: way for way in _ALL}

PARTS = ("key", "reads", "load", "build", "trace", "guards", "compile", "kernels", "rest")
"""What the first step of a process with fusioncache consists of.

``key``, ``reads``, ``load`` and ``build`` are what ``Stats.program_seconds`` says of them; ``trace`` is what Thunder
spends before its first prologue but for these; ``guards`` is that prologue; ``compile`` and ``kernels`` are what was
compiled and what was loaded, each up to the end of its first execution; ``rest`` is what remains.
"""
