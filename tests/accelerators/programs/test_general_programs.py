"""Programs at several sizes as one, and that one at others."""

from dataclasses import replace

import pytest
from blank_programs import blank, rename_templates
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.accelerators.programs.general import GeneralProgram, Identity
from fusioncache.accelerators.programs.text import (
    NamedReference,
    ProgramText,
    TemplateReference,
    TemplateUse,
    TraceText,
)
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.ir import Const, Declined, Graph, Instance, Op, Ref, TensorType
from fusioncache.template.plan import Plan

ROWS, LENGTH = Number(1, "rows"), Number(2, "length")
BOTH, HALF = Operation("*", ROWS, LENGTH), Operation("//", LENGTH, 128)
COMPUTATION = """# Constructed by Delete Last Used (took {milliseconds} milliseconds)
def computation(t_transformer_h_0_weight, t12):
  # t12: "cuda:0 f32[{rows}, {length}, 64]"
  t1 = torch.reshape(t12, ({both}, 64))  # t1: "cuda:0 f32[{both}, 64]"
  [t2] = {template}(t1, 1e-05, 0.5, -1)
  return t2
"""


def make_program(rows, length, template="sum_pow_1f", digest="a" * 64, milliseconds=3, extra=64):
    both = rows * length
    shape = TensorType("float32", (both, 64), "cuda")
    op = Op("prims.broadcast_in_dim", (Ref(0), (Const("int", str(both)), Const("int", str(extra)))), (shape,))
    graph = Graph((shape,), (op,), (1,))
    use = TemplateUse((), Plan.INLINE, "nvfuser", Instance(graph, (0,), (0,), graph))
    reference = TemplateReference("nvfuser", (), graph, digest, (use,))
    values = {"rows": rows, "length": length, "both": both, "template": template, "milliseconds": milliseconds}
    computation = TraceText("computation", COMPUTATION.format(**values), {template: reference})
    prologue = TraceText("prologue", f"def prologue(*args):\n  check(args[0], ({rows}, {length}))\n")
    return ProgramText(prologue, computation, None, TraceText("epilogue", "def epilogue():\n  return 'h.0.96'\n"))


def known(rows, length, **options):
    return make_program(rows, length, **options), {1: rows, 2: length}


def fill(general, numbers):
    """Returns the text of a program, whose templates have neither names nor digests of their own."""

    def identify(templates):
        return {name: Identity(name, "") for name in templates}

    return general.fill(numbers, identify).text


KNOWN = known(2, 64), known(3, 96, template="sum_pow_2e", digest="b" * 64, milliseconds=150)


def test_a_program_at_other_sizes_is_filled_in():
    general = GeneralProgram(KNOWN, {ROWS, LENGTH, BOTH})
    assert fill(general, {1: 5, 2: 200}) == blank(make_program(5, 200))


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 300)), min_size=2, max_size=5, unique=True))
def test_what_is_filled_in_is_right_or_refused(sizes):
    *first, last = sizes
    try:
        general = GeneralProgram([known(*each) for each in first], {ROWS, LENGTH, BOTH, HALF})
        found = fill(general, {1: last[0], 2: last[1]})
    except Declined:
        return
    assert found == blank(make_program(*last))


def test_what_was_equal_so_far_may_not_change():
    """Two rows in both programs: which 2 is the number of rows, and which is a constant, nobody knows."""
    general = GeneralProgram([known(2, 64), known(2, 96)], {ROWS, LENGTH, BOTH})
    assert fill(general, {1: 2, 2: 200}) == blank(make_program(2, 200))
    with pytest.raises(Declined, match="rows was 2 so far"):
        fill(general, {1: 3, 2: 200})


def test_an_expression_that_was_constant_so_far_may_not_change():
    general = GeneralProgram([known(2, 64), known(3, 96)], {ROWS, LENGTH, BOTH, HALF})
    assert fill(general, {1: 4, 2: 127}) == blank(make_program(4, 127))
    with pytest.raises(Declined, match="128\\) was 0 so far"):
        fill(general, {1: 4, 2: 128})


def test_a_number_that_may_be_one_of_several_must_be_all_of_them():
    """64 and 96 are the length, and what is left of it in blocks of 100."""
    rest = Operation("%", LENGTH, 100)
    general = GeneralProgram(KNOWN, {ROWS, LENGTH, BOTH, rest})
    assert fill(general, {1: 5, 2: 99}) == blank(make_program(5, 99))
    with pytest.raises(Declined, match="one of several"):
        fill(general, {1: 5, 2: 101})
    told = GeneralProgram([*KNOWN, known(5, 101)], {ROWS, LENGTH, BOTH, rest})
    assert fill(told, {1: 4, 2: 200}) == blank(make_program(4, 200))


ROUNDED = Operation("*", Operation("//", Operation("+", LENGTH, 31), 32), 32)
"""The length, rounded up to a multiple of 32: at 64 and 96 it is the length."""


def make_attention(length, rounded):
    """A program in which a tensor has a size that only whoever runs as a whole sees."""
    program = make_program(2, length)
    comments = f'  # t96: "cuda:0 f32[2, 8, {rounded}]"\n  # t97: "cuda:0 f32[2, {length}]"\n'
    computation = program.computation.source.replace("  return t2\n", f"{comments}  return t2\n")
    forward = TraceText("computation", computation, program.computation.context)
    return ProgramText(program.prologue, forward, TraceText("backward_fn", comments), program.epilogue)


ATTENTION = [(make_attention(length, length), {1: 2, 2: length}) for length in (64, 96)]


def test_sizes_in_comments_are_told_apart_by_the_names_of_tensors():
    # Of these one is not there, and one has as many sizes as another one.
    shapes = {"t96": (2, 8, ROUNDED), "t5": (2, 8, ROUNDED), "t97": (ROUNDED,)}
    general = GeneralProgram(ATTENTION, {ROWS, LENGTH, BOTH}, shapes)
    assert fill(general, {1: 2, 2: 200}) == blank(make_attention(200, 224))
    with pytest.raises(Declined, match="one of several"):
        fill(GeneralProgram(ATTENTION, {ROWS, LENGTH, BOTH, ROUNDED}), {1: 2, 2: 200})


def test_a_comment_that_tells_something_else_is_refused():
    shapes = {"t96": (2, 8, Operation("+", ROUNDED, 1))}
    with pytest.raises(Declined, match="a size is 64, 96, and not"):
        GeneralProgram(ATTENTION, {ROWS, LENGTH, BOTH}, shapes)


def test_a_number_that_nobody_computed_is_refused():
    with pytest.raises(Declined, match="128, 288 at the known lengths"):
        GeneralProgram(KNOWN, {ROWS, LENGTH})


@pytest.mark.parametrize(
    "change",
    [
        lambda program: rename_templates(program, {"t_transformer_h_0_weight": "other"}),
        lambda program: ProgramText(program.prologue, program.computation, program.prologue, program.epilogue),
        lambda program: ProgramText(program.prologue, program.computation, None, program.epilogue, True),
        lambda program: ProgramText(program.epilogue, program.computation, None, program.epilogue),
    ],
)
def test_programs_that_differ_in_more_than_numbers_are_refused(change):
    program, numbers = KNOWN[1]
    changed = change(program)
    assert changed != program
    with pytest.raises(Declined, match="more than numbers"):
        GeneralProgram([KNOWN[0], (changed, numbers)], {ROWS, LENGTH, BOTH})


def test_programs_that_call_two_functions_by_one_name_are_refused():
    def call(program, function):
        return replace(program, epilogue=replace(program.epilogue, context={"f": NamedReference("torch", function)}))

    (first, sizes), (second, others) = KNOWN
    GeneralProgram([(call(first, "sin"), sizes), (call(second, "sin"), others)], {ROWS, LENGTH, BOTH})
    with pytest.raises(Declined, match="more than numbers"):
        GeneralProgram([(call(first, "sin"), sizes), (call(second, "cos"), others)], {ROWS, LENGTH, BOTH})


def test_two_templates_of_one_name_are_refused():
    programs = []
    for program, numbers in KNOWN:
        ((name, reference),) = program.templates().items()
        graph = replace(reference.graph, ops=(replace(reference.graph.ops[0], name="prims.other"),))
        source = f"def backward_fn(t1):\n  return {name}(t1)\n"
        backward = TraceText("backward_fn", source, {name: replace(reference, graph=graph)})
        programs.append((replace(program, backward=backward), numbers))
    with pytest.raises(Declined, match="two templates have one name"):
        GeneralProgram(programs, {ROWS, LENGTH, BOTH})


def test_a_name_of_the_models_is_never_taken_for_a_template():
    """It would be given the name of one, and be called."""
    programs = [(rename_templates(program, {"t12": "template__0"}), numbers) for program, numbers in KNOWN]
    with pytest.raises(Declined, match="it has names with template__ in them"):
        GeneralProgram(programs, {ROWS, LENGTH, BOTH})


@pytest.mark.parametrize("extra", [65, 96])
def test_a_literal_of_a_template_is_a_number(extra):
    with pytest.raises(Declined):
        GeneralProgram([KNOWN[0], known(3, 96, extra=extra)], {ROWS, BOTH})
