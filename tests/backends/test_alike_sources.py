"""Functions that differ only in numbers become one; whatever else differs is refused."""

import pytest

from fusioncache.backends.bound_symbols import FunctionSource, define_source, merge_sources
from fusioncache.ir.errors import Declined


def merge(values: list[tuple[float, ...]], *bodies: str, first: tuple[int, ...] = ()) -> FunctionSource:
    return merge_sources(
        [FunctionSource(f"def region(x):\n  return {body}", {}) for body in bodies], values, first=first
    )


@pytest.mark.parametrize(
    ("values", "bodies", "args", "result"),
    [
        ([(6, 12), (9, 18)], ["[x, 6, (12, 8), -3]", "[x, 9, (18, 8), -3]"], (7, 14), ["x", 7, (14, 8), -3]),
        ([(4, 4.0), (6, 6.0)], ["(4, 4.0)", "(6, 6.0)"], (8, 8.5), (8, 8.5)),
        ([(2, 2, 5), (3, 3, 6), (3, 4, 6)], ["(2, 2, 5)", "(3, 3, 6)", "(3, 4, 6)"], (7, 8, 9), (7, 8, 9)),
    ],
)
def test_numbers_that_differ_are_the_variables(values, bodies, args, result):
    assert define_source(merge(values, *bodies))("x", *args) == result


def test_variables_change_places():
    merged = merge([(2, 5.0, 7), (3, 6.0, 9)], "(2, 5.0, 7)", "(3, 6.0, 9)", first=(1,))
    assert define_source(merged)("x", 5.5, 4, 8) == (4, 5.5, 8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("6", other) for other in ("36", "-9", "9.0", "True", "x")),
        *(("x.sin()", "x.cos()"), ("(6, 6)", "(9,)"), ("x + 6", "x - 9"), ("f(6)", "f(n=9)")),
        ("(6, True)", "(9, False)"),
    ],
)
def test_what_is_no_value_of_a_variable_and_other_operations_are_refused(one, other):
    with pytest.raises(Declined, match="Thunder"):
        merge([(6,), (9,)], one, other)


def test_names_stand_for_the_same_things():
    one, other, third = (
        FunctionSource(f"def region(x):\n  return f(x, {number})", {"f": function})
        for number, function in ((6, len), (9, max), (9, len))
    )
    with pytest.raises(Declined, match="other operations"):
        merge_sources([one, other], [(6,), (9,)])
    assert merge_sources([one, third], [(6,), (9,)]).names == {"f": len}
