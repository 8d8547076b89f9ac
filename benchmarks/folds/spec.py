"""What is measured about folds: ways to sum a chain, the bytes that they move, and in which order. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

MB = 2**20
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
SUM = "float32"
"""In which all sums are computed and passed from fold to fold."""

WIDTH_SETS = (
    (8, 4, 2, 1),
    (16, 8, 4, 2, 1),
    (32, 16, 8, 4, 2, 1),
    (16, 4, 1),
    (12, 6, 3, 1),
    (32, 8, 2, 1),
    (4, 2, 1),
)
NARROWEST_FIRST = ((8, 4, 2, 1), (32, 16, 8, 4, 2, 1))
"""Those that are measured in this order as well. The bytes are the same, and so are most of the kernels."""

ONE_KERNEL = "one kernel"
_LONGEST_KERNEL = 16
"""Terms. The compile time of a kernel grows faster than its inputs."""

POINTER_TABLE = ((1024, 4), (1024, 8), (2048, 4))
"""Variants of the Triton kernel: elements of a block, and terms that are loaded before the first one is added."""

MOST_BYTES = 60 * 10**9
_TELLING_SIZES = (16 * MB, 64 * MB)
"""Measured before all others. A hidden state in training: too large for the launches to count, and chains of them for
the L2 cache."""

Widths = tuple[int, ...]


def split(terms: int, widths: Widths) -> Widths:
    """Returns the folds that add this many terms: as many of the widest as fit, then of the next."""
    folds: list[int] = []
    for width in widths:
        count, terms = divmod(terms, width)
        folds += [width] * count
    if terms:
        raise ValueError(f"folds of {label(widths)} terms leave {terms} of them")
    return tuple(folds)


def label(widths: Widths) -> str:
    """Names a set of widths in a table."""
    return " ".join(map(str, widths))


def narrowest_first(widths: Widths) -> str:
    """Names the same with the order of its folds reversed."""
    return label(widths[::-1])


def list_plans() -> list[str]:
    """Returns the names of all plans with folds."""
    return [*map(label, WIDTH_SETS), *map(narrowest_first, NARROWEST_FIRST), ONE_KERNEL]


def plans(terms: int) -> dict[Widths, list[str]]:
    """Returns the different sequences of folds for a chain, each with the names of the plans that have it."""
    found: dict[Widths, list[str]] = {}
    for widths in WIDTH_SETS:
        found.setdefault(split(terms, widths), []).append(label(widths))
    for widths in NARROWEST_FIRST:
        found.setdefault(split(terms, widths)[::-1], []).append(narrowest_first(widths))
    if terms <= _LONGEST_KERNEL:
        found.setdefault((terms,), []).append(ONE_KERNEL)
    return found


def moved_bytes(elements: int, dtype: str, folds: Widths, head: str | None = None) -> int:
    """Returns the bytes that folds read and write: head and terms once, each sum once or, if a fold takes it, twice.

    Args:
        elements: of a term.
        dtype: of the terms.
        folds: the width of each.
        head: its dtype, if it is not that of the terms.
    """
    stored = ITEM_BYTES[head or dtype] + sum(folds) * ITEM_BYTES[dtype]
    return elements * (stored + (2 * len(folds) - 1) * ITEM_BYTES[SUM])


def least_bytes(elements: int, dtype: str, terms: int, head: str | None = None) -> int:
    """Returns the bytes where each term is read once, and the sum written once."""
    return moved_bytes(elements, dtype, (terms,), head)


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured on the same tensors.

    Attributes:
        kind: ``chain``: every way to sum one. ``width``: one fold behind another, whose head so is a float32 sum.
        dtype: of the terms.
        term_bytes: the size of each.
        terms: how many there are.
    """

    kind: str
    dtype: str
    term_bytes: int
    terms: int

    @property
    def elements(self) -> int:
        """How many elements a term has."""
        return self.term_bytes // ITEM_BYTES[self.dtype]

    @property
    def head(self) -> str:
        """The dtype of what the terms are added to."""
        return self.dtype if self.kind == "chain" else SUM

    @property
    def needs(self) -> int:
        """Bytes of the head and all terms."""
        return self.elements * (ITEM_BYTES[self.head] + self.terms * ITEM_BYTES[self.dtype])

    @property
    def least_bytes(self) -> int:
        """The bytes that every way must move."""
        return least_bytes(self.elements, self.dtype, self.terms, self.head)

    def __str__(self) -> str:
        what = f"chain of {self.terms}" if self.kind == "chain" else f"width {self.terms}"
        return f"{what}, {self.dtype}, {size(self.term_bytes)} a term"


def size(term_bytes: int) -> str:
    """Writes a term's size in a table."""
    return f"{term_bytes / MB:g} MB"


def order_steps(
    sizes: Sequence[int], dtypes: Sequence[str], terms: Sequence[int], widths: Sequence[int]
) -> Iterator[Step]:
    """Yields everything to measure, the most telling first, as there may not be time for all.

    Args:
        sizes: of a term, in bytes.
        dtypes: of the terms.
        terms: lengths of chains.
        widths: of single folds.
    """
    telling = [size for size in sizes if size in _TELLING_SIZES]
    for group in (telling, [size for size in sizes if size not in telling]):
        for kind, counts in (("chain", terms), ("width", widths)):
            for term_bytes in group:
                for dtype in dtypes:
                    yield from (Step(kind, dtype, term_bytes, count) for count in counts)


def count_copies(needed: int, cold: int, there: int) -> int:
    """Returns how many sets of tensors calls take in turn, so that none finds its own in the cache.

    Args:
        needed: bytes of one set.
        cold: bytes after which nothing of the first is left in the cache.
        there: bytes that there are for all of them.
    """
    return max(1, min(ceil(cold / needed), there // needed))
