"""Functions that differ only in numbers become one; whatever else differs is refused."""

import pytest

from fusioncache.backends.bound_symbols import FunctionSource, define_source, merge_sources
from fusioncache.ir.errors import Declined


def source(*lines: str, **names: object) -> FunctionSource:
    return FunctionSource("\n  ".join(["def region(x):", *lines]), names)


def merge(values: list[tuple[float, ...]], *bodies: str) -> FunctionSource:
    return merge_sources([source(f"return {body}") for body in bodies], values)


def call(merged: FunctionSource, *args: object) -> object:
    return define_source(merged)(*args)


def test_numbers_that_differ_are_the_variables():
    merged = merge([(6, 12), (9, 18)], "[x, 6, (12, 8), -3]", "[x, 9, (18, 8), -3]")
    assert call(merged, "x", 7, 14) == ["x", 7, (14, 8), -3]


def test_a_float_is_another_number_than_an_integer():
    merged = merge([(4, 4.0), (6, 6.0)], "(4, 4.0)", "(6, 6.0)")
    assert call(merged, "x", 8, 8.5) == (8, 8.5)


def test_all_sources_are_asked():
    values = [(2, 2, 5), (3, 3, 6), (3, 4, 6)]
    merged = merge(values, "(2, 2, 5)", "(3, 3, 6)", "(3, 4, 6)")
    assert call(merged, "x", 7, 8, 9) == (7, 8, 9)


def test_variables_change_places():
    sources = [source("return (2, 5.0, 7)"), source("return (3, 6.0, 9)")]
    merged = merge_sources(sources, [(2, 5.0, 7), (3, 6.0, 9)], first=(1,))
    assert call(merged, "x", 5.5, 4, 8) == (4, 5.5, 8)


@pytest.mark.parametrize("other", ["36", "-9", "9.0", "True", "x"])
def test_what_is_no_value_of_a_variable_is_refused(other):
    with pytest.raises(Declined, match="Thunder"):
        merge([(6,), (9,)], "6", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("x.sin()", "x.cos()"), ("(6, 6)", "(9,)"), ("x + 6", "x - 9"), ("f(6)", "f(n=9)"), ("(6, True)", "(9, False)")],
)
def test_other_operations_are_refused(one, other):
    with pytest.raises(Declined, match="Thunder"):
        merge([(6,), (9,)], one, other)


def test_names_stand_for_the_same_things():
    one, other = source("return f(x, 6)", f=len), source("return f(x, 9)", f=max)
    with pytest.raises(Declined, match="other operations"):
        merge_sources([one, other], [(6,), (9,)])
    merged = merge_sources([one, source("return f(x, 9)", f=len)], [(6,), (9,)])
    assert merged.names == {"f": len}
