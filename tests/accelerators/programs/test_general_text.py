"""Texts that are filled in, and their code, which is what Python would compile of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instructions import list_instructions

from fusioncache.accelerators.programs.build import compile_trace
from fusioncache.accelerators.programs.general import GeneralProgram
from fusioncache.accelerators.programs.text import ProgramText, TraceText
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.ir.errors import Declined

LENGTH = Number(1, "length")
NEGATIVE, QUOTIENT = Operation("-", 0, LENGTH), Operation("/", LENGTH, 1)
LINES = {
    "a number": "x = {n}",
    "less than none": "x = f(-{n})",
    "in a tuple": "x = f(({n}, 64), [1, {n}], {{'a': {n}}})",
    "in tuples": "x = f((({n}, (2, {n})), 1.5, None, True), ..., 'a')",
    "in a set": "x = y in {{{n}, 64}}",
    "by name": "x = f(a, dim={n}, other='{n}')",
    "with a point": "x = f({n}, {f}, (-1.5, {f}, -{f}), 'of {f} {n}')  # {f}",
    "in a text": "x = f('{n}', 'h {n} 07', 'cuda:{n}', '{n}\\x31')",
    "in a slice": "x = y[:, :{n}, -{n}:]",
    "in a function": "def g(z={n}):\n    return z, {n}\n  x = g()",
    "in an annotation": 'x: "int {n}" = f({n})  # x: "cpu f32[{n}, 64]"',
}
NO_NUMBERS = ["t_{n}w", "a.b{n}", "1e{n}", "0.{n}0", "0x{n}", "'h.{n}'", "'0{n}'", "'\\x31{n}'", "'n{n}'"]


def make_program(lines, number):
    body = "\n  ".join(lines).format(n=number, f=float(number))
    computation = TraceText("computation", f"# Constructed by f\ndef computation(a, y, f):\n  {body}\n  return x\n")
    return ProgramText(TraceText("prologue", "x = 0\n"), computation, None, TraceText("epilogue", "x = 64\n"))


def fill(lines, number, known=(96, 128)):
    general = GeneralProgram(
        [(make_program(lines, each), {1: each}) for each in known],
        {LENGTH, NEGATIVE, QUOTIENT, Operation("-", 0, QUOTIENT)},
    )
    return general.fill({1: number}, lambda templates: {})


@pytest.mark.parametrize("number", [200, 64, 2])
@pytest.mark.parametrize("name", LINES)
def test_the_code_is_what_python_compiles(name, number):
    filled = fill([LINES[name]], number)
    assert filled.text == make_program([LINES[name]], number).map_traces(lambda trace: without_comment(trace))
    assert [*map(list_instructions, filled.compiled.codes)] == [
        list_instructions(compile_trace(trace)) for trace in filled.text.traces()
    ]


def without_comment(trace):
    return TraceText(trace.name, trace.source.replace("# Constructed by f\n", ""), trace.context)


@given(st.lists(st.sampled_from(sorted(LINES)), min_size=1, max_size=4), st.integers(2, 2**70))
def test_several_lines(names, number):
    filled = fill([LINES[name] for name in names], number)
    compiled = [list_instructions(compile_trace(trace)) for trace in filled.text.traces()]
    assert [*map(list_instructions, filled.compiled.codes)] == compiled


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_numbers_that_are_part_of_something_else_are_none(value):
    """Programs that differ there differ in more than numbers."""
    with pytest.raises(Declined, match="more than numbers"):
        fill([f"x = f({value})"], 200)


def test_what_only_looks_like_a_number_stays():
    filled = fill(["x = f('007', '-0', {n})"], 7, known=(9, 8))
    assert "f('007', '-0', 7)" in filled.text.computation.source


@pytest.mark.parametrize("line", ["x = 7317317000000001", "x = f('7317317')", "x = t7317317"])
def test_a_number_that_could_be_a_mark_is_refused(line):
    with pytest.raises(Declined, match="may be another size"):
        fill([line, "x = {n}"], 200)


def test_what_marks_cannot_be_found_in_is_refused():
    with pytest.raises(Declined, match="a constant of type bytes"):
        fill(["x = b'{n}'"], 200)


def test_what_is_no_python_is_refused():
    with pytest.raises(Declined, match="the text of computation is no Python"):
        fill(["x = = {n}"], 200)
