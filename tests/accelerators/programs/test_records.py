"""What was learned from a class is used again only where describing it would give the same."""

from typing import Any

import pytest
import torch

from fusioncache.accelerators.programs.describe import Describer, list_lines
from fusioncache.accelerators.programs.fingerprint import KnownClasses


def make_class(name: str = "Body", **content: Any) -> type:
    return type(name, (), content)


def describe(values: tuple[Any, ...], known: KnownClasses) -> list[tuple[str, str]]:
    """Returns the texts of values, described one after the other, and of all classes that are met."""
    describer = Describer(known=known)
    lines = [line for number, value in enumerate(values) for line in describer.walk(f"value{number}", value)]
    return [*lines, *list_lines(describer.list_classes())]


def learn(*values: Any) -> KnownClasses:
    """Returns what is known of classes once values were described."""
    learning = KnownClasses(is_learning=True)
    describe(values, learning)
    return KnownClasses(learning.found)


FUNCTION, TENSOR = (lambda x: x), torch.zeros(4)
HELD, WITHOUT = make_class("Held", function=FUNCTION, items=[1]), make_class("Without")
FIRST, SECOND = make_class("First", mark=object()), make_class("Second", mark=object())
ONE, OTHER = make_class("One", kind=WITHOUT), make_class("One")
AROUND = make_class("Around", kind=ONE)
VIEW = make_class("View", tensor=TENSOR[:2])
INNER = make_class("Inner", held=HELD)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((HELD,), (HELD,)),
        ((HELD, WITHOUT), (WITHOUT, HELD)),
        # What a class holds has the name by which it was met before, or none.
        ((FUNCTION, HELD), (HELD,)),
        ((HELD,), (FUNCTION, HELD)),
        ((INNER,), (FUNCTION, INNER)),
        # Bare objects are numbered.
        ((FIRST, SECOND), (SECOND, FIRST)),
        ((FIRST, SECOND), (SECOND, [SECOND.mark])),
        # So are classes of one name.
        ((ONE,), (OTHER, ONE)),
        ((OTHER, ONE), (ONE,)),
        ((ONE, OTHER), (OTHER, ONE)),
        ((AROUND,), (OTHER, AROUND)),
        ((OTHER, AROUND), (AROUND,)),
        # Tensors are told by what they share memory with.
        ((TENSOR, VIEW), (VIEW,)),
        ((VIEW,), (TENSOR, VIEW)),
    ],
)
def test_a_class_is_known_as_it_would_be_described(before, after):
    known = learn(*before)
    assert describe(after, known) == describe(after, KnownClasses())


def test_a_class_that_shows_nothing_of_what_was_described_before_is_known():
    known = learn(TENSOR, WITHOUT, HELD, FIRST)
    assert {id(HELD), id(WITHOUT), id(FIRST)} <= known.known.keys()
    describe((TENSOR, WITHOUT, HELD, FIRST), known)
    assert known.found.keys() == known.known.keys()
    assert id(HELD) not in learn(FUNCTION, HELD).known
