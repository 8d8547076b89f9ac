"""Programs at several sizes generalized to one, and filled in at others: its texts, their code, and its templates."""

import dis
import math
from dataclasses import replace
from types import CodeType
from typing import Any

import pytest
from blank_programs import blank, rename_templates
from hypothesis import example, given
from hypothesis import strategies as st

from fusioncache.accelerators.programs.build import compile_trace
from fusioncache.accelerators.programs.general import GeneralProgram, Identity
from fusioncache.accelerators.programs.text import (
    NamedReference,
    ProgramText,
    TemplateReference,
    TemplateUse,
    TraceText,
)
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.ir import Const, Declined, Graph, Instance, NumberType, Op, Ref, TensorType
from fusioncache.template.plan import Plan

ROWS, LENGTH = Number(1, "rows"), Number(2, "length")
BOTH, HALF, RECIPROCAL = Operation("*", ROWS, LENGTH), Operation("//", LENGTH, 128), Operation("/", 1, LENGTH)
USUAL = frozenset({ROWS, LENGTH, BOTH, RECIPROCAL})
LITERALS = [0, 1, -1, 64, 0.0, -0.0, 1.0, -1.0, 1e-5, math.inf, math.nan, True, False, None, "64", "n"]
COMPUTATION = """# Constructed by Delete Last Used (took {milliseconds} milliseconds)
def computation(t_transformer_h_0_weight, t12):
  # t12: "cuda:0 f32[{rows}, {length}, 64]"
  t1 = torch.reshape(t12, ({both}, 64))  # t1: "cuda:0 f32[{both}, 64]"
  [t2] = {template}(t1, 1e-05, 0.5, -1)
  return t2
"""


def constant(value):
    kind = "none" if value is None else type(value).__name__
    return Const(kind, value.hex() if isinstance(value, float) else str(value))


def list_instructions(code: CodeType) -> tuple[Any, ...]:
    """Returns the instructions of a code object, with constants by value instead of by position."""
    found = [
        (each.opname, _show(each.argval), each.starts_line, each.is_jump_target) for each in dis.get_instructions(code)
    ]
    return code.co_name, code.co_filename, code.co_varnames, code.co_flags, found


def _show(constant: object) -> Any:
    """Returns a constant with its type, because 1 and True are equal."""
    if isinstance(constant, CodeType):
        return list_instructions(constant)
    if isinstance(constant, tuple):
        return [_show(each) for each in constant]
    return type(constant), constant


def make_graph(rows, length, extra=64, literals=()):
    """Returns a graph with sizes and literals in arguments, tuples, keyword arguments, inputs and outputs."""
    both, fixed = TensorType("float32", (rows * length, 64), "cuda"), TensorType("float32", (64, 64), "cuda")
    others = tuple(map(constant, literals))
    ops = (
        Op(
            "prims.reshape",
            (Ref(0), (constant(rows * length), constant(extra))),
            (both, None),
            (("dim", constant(length)),),
        ),
        Op("prims.full", ((constant(length), *others), constant(1 / length)), (fixed,)),
        Op("prims.other", others, (fixed,), (("dim", constant(1)),)),
    )
    return Graph((both, fixed, NumberType("float")), ops, (3, 4, 5))


def make_program(rows, length, template="sum_pow_1f", digest="a" * 64, milliseconds=3, extra=64, literals=()):
    graph = make_graph(rows, length, extra, literals)
    region = Graph(graph.inputs, graph.ops[::-1], graph.outputs)
    instances = [Instance(region, (0, 1, 2), (0, 1, 2), plain) for plain in (None, graph)]
    uses = tuple(TemplateUse((), Plan.INLINE, "nvfuser", instance) for instance in instances)
    reference = TemplateReference("nvfuser", (("a", 1),), graph, digest, uses)
    values = {"rows": rows, "length": length, "both": rows * length, "template": template}
    source = COMPUTATION.format(milliseconds=milliseconds, **values)
    prologue = TraceText("prologue", f"def prologue(*args):\n  check(args[0], ({rows}, {length}))\n")
    epilogue = TraceText("epilogue", "def epilogue():\n  return 'h.0.96'\n")
    return ProgramText(prologue, TraceText("computation", source, {template: reference}), None, epilogue)


def known(rows, length, **options):
    return make_program(rows, length, **options), {1: rows, 2: length}


def identify(templates):
    """Returns an identity for each template that keeps its name and has no digest."""
    return {name: Identity(name, "") for name in templates}


def fill(general, numbers):
    return general.fill(numbers, identify).text


KNOWN = known(2, 64), known(3, 96, template="sum_pow_2e", digest="b" * 64, milliseconds=150)


@given(st.lists(st.sampled_from(LITERALS), max_size=5), st.integers(2, 9), st.integers(129, 10**6))
def test_templates_are_those_of_the_program_at_that_size(literals, rows, length):
    others = {"template": "sum_pow_2e", "digest": "b" * 64, "milliseconds": 150}
    programs = [known(2, 64, literals=literals), known(3, 96, literals=literals, **others)]
    filled = fill(GeneralProgram(programs, USUAL), {1: rows, 2: length})
    assert filled == blank(make_program(rows, length, literals=literals))
    # Compared as text as well, which distinguishes 0.0 from -0.0 and 1 from True.
    graphs = [each.graph for each in filled.templates().values()]
    assert repr(graphs) == repr([make_graph(rows, length, literals=literals)])


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 300)), min_size=2, max_size=5, unique=True))
def test_what_is_filled_in_is_right_or_refused(sizes):
    *first, last = sizes
    try:
        general = GeneralProgram([known(*each) for each in first], {*USUAL, HALF})
        found = fill(general, {1: last[0], 2: last[1]})
    except Declined:
        return
    assert found == blank(make_program(*last))


REST = Operation("%", LENGTH, 100)
"""At 64 and 96 it is the length."""


@pytest.mark.parametrize(
    ("programs", "expressions", "filled", "refused", "reason"),
    [
        # It is unknown which 2 is the number of rows, and which is a constant.
        ([known(2, 64), known(2, 96)], USUAL, (2, 200), (3, 200), "rows was 2 so far"),
        ([known(2, 64), known(3, 96)], {*USUAL, HALF}, (4, 127), (4, 128), r"128\) was 0 so far"),
        (KNOWN, {*USUAL, REST}, (5, 99), (5, 101), "one of several"),
        ([*KNOWN, known(5, 101)], {*USUAL, REST}, (4, 200), None, ""),
    ],
    ids=["an equal size", "a constant expression", "one of two expressions", "one that was told apart"],
)
def test_what_was_the_same_so_far_may_not_differ(programs, expressions, filled, refused, reason):
    general = GeneralProgram(programs, expressions)
    assert fill(general, {1: filled[0], 2: filled[1]}) == blank(make_program(*filled))
    if refused is not None:
        with pytest.raises(Declined, match=reason):
            fill(general, {1: refused[0], 2: refused[1]})


ROUNDED = Operation("*", Operation("//", Operation("+", LENGTH, 31), 32), 32)
"""The length, rounded up to a multiple of 32: at 64 and 96 it is the length."""


def make_attention(length, rounded):
    """Returns a program with a tensor of a rounded size that only an operation that runs as a whole sees."""
    program = make_program(2, length)
    comments = f'  # t96: "cuda:0 f32[2, 8, {rounded}]"\n  # t97: "cuda:0 f32[2, {length}]"\n'
    computation = program.computation.source.replace("  return t2\n", f"{comments}  return t2\n")
    forward = TraceText("computation", computation, program.computation.context)
    return ProgramText(program.prologue, forward, TraceText("backward_fn", comments), program.epilogue)


ATTENTION = [(make_attention(length, length), {1: 2, 2: length}) for length in (64, 96)]


def test_sizes_in_comments_that_may_be_several_are_left_open():
    filled = fill(GeneralProgram(ATTENTION, USUAL, {ROUNDED}), {1: 2, 2: 200})
    assert '  # t96: "cuda:0 f32[2, 8, ?]"\n  # t97: "cuda:0 f32[2, ?]"\n' in filled.computation.source
    three = [*ATTENTION, (make_attention(100, 128), {1: 2, 2: 100})]
    assert fill(GeneralProgram(three, USUAL, {ROUNDED}), {1: 2, 2: 200}) == blank(make_attention(200, "?"))
    with pytest.raises(Declined, match="one of several"):
        fill(GeneralProgram(ATTENTION, {*USUAL, ROUNDED}), {1: 2, 2: 200})


def change_template(program):
    """Returns the program with another template of the same name in its backward pass."""
    ((name, reference),) = program.templates().items()
    graph = replace(reference.graph, ops=(replace(reference.graph.ops[0], name="prims.other"),))
    source = f"def backward_fn(t1):\n  return {name}(t1)\n"
    return replace(program, backward=TraceText("backward_fn", source, {name: replace(reference, graph=graph)}))


def call(program, function):
    return replace(program, epilogue=replace(program.epilogue, context={"f": NamedReference("torch", function)}))


def name_like_a_template(program):
    return rename_templates(program, {"t12": "template__0"})


def leave_unchanged(program):
    return program


# Changes of two programs, and the reason why they cannot be generalized.
DIFFERENT = [
    (leave_unchanged, lambda one: rename_templates(one, {"t_transformer_h_0_weight": "other"}), "more than numbers"),
    (leave_unchanged, lambda one: replace(one, backward=one.prologue), "more than numbers"),
    (leave_unchanged, lambda one: replace(one, returns_none_for_gradients=True), "more than numbers"),
    (leave_unchanged, lambda one: replace(one, prologue=one.epilogue), "more than numbers"),
    (lambda one: call(one, "sin"), lambda one: call(one, "cos"), "more than numbers"),
    (change_template, change_template, "two templates have one name"),
    (name_like_a_template, name_like_a_template, "it has names with template__ in them"),
]


@pytest.mark.parametrize(("change", "change_other", "reason"), DIFFERENT)
def test_programs_that_differ_in_more_than_sizes_are_refused(change, change_other, reason):
    (one, sizes), (other, others) = KNOWN
    GeneralProgram([(call(one, "sin"), sizes), (call(other, "sin"), others)], USUAL)
    with pytest.raises(Declined, match=reason):
        GeneralProgram([(change(one), sizes), (change_other(other), others)], USUAL)


@pytest.mark.parametrize(
    ("expressions", "extra"), [(USUAL - {BOTH}, 64), (USUAL - {LENGTH}, 65), (USUAL - {LENGTH}, 96)]
)
def test_a_number_that_no_expression_gives_is_refused(expressions, extra):
    with pytest.raises(Declined, match="at the known lengths"):
        GeneralProgram([KNOWN[0], known(3, 96, extra=extra)], expressions)


NEGATIVE, QUOTIENT = Operation("-", 0, LENGTH), Operation("/", LENGTH, 1)
LINES = {
    "a number": "x = {n}",
    "less than none": "x = f(-{n})",
    "in a tuple": "x = f(({n}, 64), [1, {n}], {{'a': {n}}})",
    "in tuples": "x = f((({n}, (2, {n})), 1.5, None, True), ..., 'a')",
    "in a set": "x = y in {{{n}, 64}}",
    "by name": "x = f(a, dim={n}, other='{n}')",
    "with a point": "x = f({n}, {f}, (-1.5, {f}, -{f}), 'of {f} {n}')  # {f}",
    "in a text": "x = f('{n}', 'h {n} 07', '007', '-0', 'cuda:{n}', '{n}\\x31')",
    "in a slice": "x = y[:, :{n}, -{n}:]",
    "in a function": "def g(z={n}):\n    return z, {n}\n  x = g()",
    "in an annotation": 'x: "int {n}" = f({n})  # x: "cpu f32[{n}, 64]"',
}
NO_NUMBERS = ["t_{n}w", "a.b{n}", "1e{n}", "0.{n}0", "0x{n}", "'h.{n}'", "'0{n}'", "'\\x31{n}'", "'n{n}'"]


def make_text(lines, number):
    body = "\n  ".join(lines).format(n=number, f=float(number))
    computation = TraceText("computation", f"# Constructed by f\ndef computation(a, y, f):\n  {body}\n  return x\n")
    return ProgramText(TraceText("prologue", "x = 0\n"), computation, None, TraceText("epilogue", "x = 64\n"))


def fill_lines(lines, number, known=(96, 128)):
    expressions = {LENGTH, NEGATIVE, QUOTIENT, Operation("-", 0, QUOTIENT)}
    general = GeneralProgram([(make_text(lines, each), {2: each}) for each in known], expressions)
    return general.fill({2: number}, lambda templates: {})


@given(st.lists(st.sampled_from(sorted(LINES)), min_size=1, max_size=4), st.integers(2, 2**70))
@example(sorted(LINES), 200)
@example(sorted(LINES), 64)
@example(sorted(LINES), 2)
def test_texts_and_their_code_are_what_python_compiles(names, number):
    lines = [LINES[name] for name in names]
    filled = fill_lines(lines, number)
    assert filled.text == blank(make_text(lines, number))
    compiled = [list_instructions(compile_trace(trace)) for trace in filled.text.traces()]
    assert [*map(list_instructions, filled.compiled.codes)] == compiled


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *((f"x = f({part})", "more than numbers") for part in NO_NUMBERS),
        *((f"x = {{n}}, {mark}", "may be another size") for mark in ("7317317000000001", "'7317317'", "t7317317")),
        ("x = b'{n}'", "a constant of type bytes"),
        ("x = = {n}", "the text of computation is no Python"),
    ],
)
def test_numbers_that_are_no_sizes_are_refused(line, reason):
    """They are part of other text, could be a size's mark, or are in code that cannot contain marks."""
    with pytest.raises(Declined, match=reason):
        fill_lines([line], 200)
