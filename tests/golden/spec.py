"""The modes and lengths at which each model is printed. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.common.processes import ROOT

DATA = Path(__file__).with_name("data") / version("lightning-thunder")
"""The texts of the installed Thunder: each supported version prints traces of its own."""
TESTS = ROOT / "tests"

FORWARD, TRAINING = "forward", "training"
MODES = (FORWARD, TRAINING)

LENGTHS = (24, 40, 17, 64, 33, 16, 48, 60)
"""Tokens in a row, in order. 16 and 64 are widths of the models as well."""
ROWS = (3, 5, 2, 8, 4, 6, 7, 9)
"""Rows of the inputs, in order, of a model whose inputs have no length: that of images."""
FEW = 2
"""After so many lengths the counts are printed for the first time: the second one makes a program for any length."""
LAYERS = 2
BATCH = 2


@dataclass(frozen=True, slots=True)
class Spec:
    """The modes in which one model is printed.

    Attributes:
        model: its name in the zoo.
        modes: some of ``MODES``.
    """

    model: str
    modes: tuple[str, ...] = MODES


def is_printed(position: int) -> bool:
    """Returns whether the programs of a length are printed in full: of the first two and of the last one.

    Args:
        position: of the length, from 0.
    """
    return position < FEW or position == len(LENGTHS) - 1
