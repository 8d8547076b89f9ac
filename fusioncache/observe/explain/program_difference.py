"""Explains why a program differs from the stored one: by its key, or by a read of its derivation.

A program is Thunder's result for a model and one kind of input. Its key consists of lists of values, one line each; a
read has one text. All texts describe values, so that comparing them needs neither the model nor torch nor Thunder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from fusioncache.ir.keys import Comparison, kind_of, read_values
from fusioncache.observe.explain.changes import shorten_values, write_difference
from fusioncache.observe.explain.difference import Texts, list_differing
from fusioncache.process.secrets import blur

_FIRST = ("program format", "program versions", "jit options", "state", "variables", "arguments", "model", "classes")
"""The ingredients in explanatory order: differences of later ones may follow from those of earlier ones."""
_CLASSES = "classes"
"""The ingredient with lines for classes, each followed by lines for its attributes."""

_LONGEST = 100
_ABSENT = "absent"
"""The text of a missing value, which differs from Python's None."""
_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{16,56}\b")
_GRAPH = re.compile(r"(?:torch\.fx\.graph_module\.)?GraphModule\.__new__\.<locals>\.GraphModuleImpl")
_KNOWN = re.compile(r"@([\w.]+)")
"""A reference by name to a value that was described before."""
_IN_READS = {
    "builtin": "the builtin `{}`",
    "function": "the function `{}`",
    "class": "the class `{}`",
    "variable": "the variable `{}` of the environment",
    "import": "what `import {}` finds",
    "query": "what `{}` says",
}


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """One difference between a program and a stored one.

    Attributes:
        where: the name of the ingredient, or the kind of the read.
        name: what differs, in the notation of the key or read.
        what: the same in words, such as ``the option nv_enable_linear``.
        before: the description of its value when the stored program was made; None if it was missing.
        after: the description of its value now; None if it is missing.
    """

    where: str
    name: str
    what: str
    before: str | None
    after: str | None

    @property
    def sentence(self) -> str:
        """The difference, as the end of a sentence about a program that was derived again."""
        before, after = self.values
        if self.is_hidden:
            return f"{self.what} differs (values hidden)"
        # Two sources of one function, for example, differ only in their hashes.
        if _HASH.sub("", self.before or _ABSENT) == _HASH.sub("", self.after or _ABSENT):
            return f"{self.what} is not what it was when this program was made"
        return f"{self.what} is {after}, and was {before} when this program was made"

    @property
    def is_hidden(self) -> bool:
        """True if only hidden texts differ."""
        return None not in (self.before, self.after) and self.to_dict()["before"] == self.to_dict()["after"]

    @property
    def values(self) -> tuple[str, str]:
        """Both descriptions, long ones cut around their first difference; ``absent`` for a missing one."""
        before, after = map(_write_value, (self.before, self.after))
        return shorten_values(before, after, _LONGEST)

    def compare(self, a: str, b: str, others: int = 0) -> str:
        """Returns a sentence about two stored programs, named ``a`` and ``b``, that differ in so many other things."""
        before, after = self.values
        values = "values hidden" if self.is_hidden else f"{before} in {a}, {after} in {b}"
        return write_difference(self.what, values, others)

    def to_dict(self) -> dict[str, str | None]:
        """Returns the difference as JSON, with secrets hidden."""
        before, after = (None if text is None else blur(text) for text in (self.before, self.after))
        return {"where": self.where, "name": self.name, "what": self.what, "before": before, "after": after}


def compare_program_keys(before: Texts, after: Texts) -> tuple[ProgramDifference, ...]:
    """Returns the differences between the keys of two programs, the most explanatory first.

    Args:
        before: the ingredients of the stored program's key.
        after: the ingredients of the other program's key.
    """
    names = sorted(list_differing(before, after), key=lambda name: (_rank(name), name))
    found = (_compare_ingredient(name, before.get(name), after.get(name)) for name in names)
    return tuple(chain.from_iterable(found))


def compare_read(kind: str, name: str, before: str | None, after: str | None) -> ProgramDifference:
    """Returns the difference between a stored read and its current value, or that in another program.

    Args:
        kind: of the read, such as ``global``.
        name: of the value that was read.
        before: its description when the program was made, or None.
        after: its description now, or None.
    """
    return ProgramDifference(kind, name, _name_read(kind, name), before, after)


def compare_reads(
    before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]
) -> tuple[ProgramDifference, ...]:
    """Returns the differences between the reads of two stored programs, which are given by kind and name."""
    return tuple(compare_read(*read, before.get(read), after.get(read)) for read in list_differing(before, after))


def write_program_miss(model: str, difference: ProgramDifference, others: int = 0) -> str:
    """Returns a sentence with the reason why a stored program was not reused.

    Args:
        model: class of the module, or name of the function.
        difference: the difference to the stored program.
        others: the number of further differences.
    """
    more = f" ({others} more {'thing differs' if others == 1 else 'things differ'})" if others else ""
    return f"the program of {model} was traced again: {difference.sentence}{more}"


def hide_graph_classes(text: str) -> str:
    """Returns a text with a readable name for the classes that torch makes for Dynamo's graphs."""
    return _GRAPH.sub("<Dynamo graph>", text)


def find_source_line(source: str, name: str) -> str | None:
    """Returns the user's source line, from the comments of a trace, that contains the last word of a name.

    Args:
        source: of a trace, as Thunder prints it.
        name: of the value that differs, such as ``torch.nn.functional.silu``.
    """
    words = re.findall(r"\w+", name)
    if not words:
        return None
    said = re.compile(rf"^ *# (\S.*:\d+):\s+(.*\b{words[-1]}\b.*)$", re.MULTILINE)
    found = said.search(source)
    return f"{found[1]}: {found[2].strip()}" if found else None


def _name_read(kind: str, name: str) -> str:
    return _IN_READS.get(kind, "`{}`").format(hide_graph_classes(name.replace(":", ".")))


def _compare_ingredient(name: str, before: str | None, after: str | None) -> Iterator[ProgramDifference]:
    kind = kind_of(name)
    if kind.comparison is not Comparison.VALUES or before is None or after is None:
        yield ProgramDifference(name, "", kind.subject, before, after)
        return
    x, y = read_values(before), read_values(after)
    differing = list_differing(x, y)
    for line in _leave_out_owners(differing, x.keys() & y.keys()) if name == _CLASSES else differing:
        what = _name_read("attribute", line) if name == _CLASSES and ":" in line else kind.phrase.format(line) or line
        yield ProgramDifference(name, line, hide_graph_classes(what), x.get(line), y.get(line))


def _leave_out_owners(lines: Sequence[str], common: Set[str]) -> list[str]:
    """Returns lines without classes that have a differing attribute, and without attributes of new classes.

    Args:
        lines: the lines that differ, of classes and of their attributes: ``class:name``.
        common: the lines that both keys have.
    """
    owners = {line.partition(":")[0] for line in lines if ":" in line}
    return [
        line for line in lines if (line.partition(":")[0] in common if ":" in line else line not in owners & common)
    ]


def _write_value(text: str | None) -> str:
    """Returns a readable description: hashes are shortened, and references show the name of their value."""
    if text is None:
        return _ABSENT
    known = _KNOWN.fullmatch(text)
    return f"the very `{known[1]}`" if known else hide_graph_classes(blur(_HASH.sub(r"\1", text))) or "empty"


def _rank(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)
