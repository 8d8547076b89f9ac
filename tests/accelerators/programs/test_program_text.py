"""Programs as bytes: every program survives, and nothing else passes for one."""

import pytest
import random_regions
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.accelerators.programs.text import (
    ModuleReference,
    NamedReference,
    ProgramText,
    SymbolReference,
    TemplateReference,
    TemplateUse,
    TraceText,
    decode,
    encode,
)
from fusioncache.ir import Graph, Instance
from fusioncache.template.plan import Plan

HEADS = ("# Constructed by nobody", "import torch", "import thunder.core.dtypes as dtypes", "from torch import Tensor")
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@st.composite
def uses(draw: st.DrawFn) -> TemplateUse:
    region = draw(random_regions.graphs())
    inputs = draw(st.permutations(range(len(region.inputs))))
    outputs = draw(st.permutations(range(len(region.outputs))))
    arities = tuple(draw(st.lists(st.integers(0, 40), max_size=2)))
    plain = draw(st.none() | st.just(Graph(region.inputs, region.ops, region.outputs[::-1], region.sizes)))
    instance = Instance(region, tuple(inputs), tuple(outputs), plain)
    sizes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
    layouts = draw(st.lists(st.lists(st.none() | st.tuples(sizes, sizes), max_size=2).map(tuple), max_size=2))
    return TemplateUse(arities, draw(st.sampled_from(Plan)), draw(NAMES), instance, tuple(layouts))


@st.composite
def templates(draw: st.DrawFn) -> TemplateReference:
    option = (
        st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3) | st.lists(NAMES, max_size=2).map(tuple)
    )
    options = draw(st.dictionaries(NAMES, option, max_size=2))
    digest = draw(st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
    used = tuple(draw(st.lists(uses(), max_size=2)))
    return TemplateReference(draw(NAMES), tuple(options.items()), draw(random_regions.graphs()), digest, used)


def references():
    modules = st.sampled_from(["torch", "thunder.core.dtypes", "operator"])
    names, texts = st.sampled_from(["Tensor", "Outer.Inner"]), st.text(max_size=3)
    return st.one_of(
        st.builds(ModuleReference, modules),
        st.builds(NamedReference, modules | st.just("__main__"), names, texts),
        st.builds(SymbolReference, texts, NAMES, texts),
        templates(),
    )


@st.composite
def traces(draw: st.DrawFn) -> TraceText:
    name = draw(NAMES)
    head = draw(st.lists(st.sampled_from(HEADS), max_size=3))
    comments = draw(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8), max_size=3))
    body = [f"def {name}(x):", *(f"  # {comment}" for comment in comments), "", "  return x"]
    return TraceText(name, "\n".join([*head, *body]), draw(st.dictionaries(NAMES, references(), max_size=3)))


PROGRAMS = st.builds(ProgramText, traces(), traces(), st.none() | traces(), traces(), st.booleans())


@settings(max_examples=20)
@given(PROGRAMS, st.data())
def test_programs_survive_and_parts_of_them_do_not(program, data):
    content = encode(program)
    assert decode(content) == program
    assert encode(decode(content)) == content
    with pytest.raises(ValueError):
        decode(content[: data.draw(st.integers(0, len(content) - 1))])


def trace(*lines: str, **context) -> TraceText:
    return TraceText("run", "\n".join(lines), context)


WHOLE = ("import torch", "", "@torch.no_grad()", "@no_autocast", "def run(x):", "  # x", "", "  return x")


def program_of(one: TraceText) -> ProgramText:
    return ProgramText(trace(*WHOLE), one, None, trace(*WHOLE))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("import os", *WHOLE), "imports os, which stored programs may not use"),
        (("from subprocess import run", *WHOLE), "imports subprocess"),
        (("import torch; import os", *WHOLE), "has the line"),
        (("print()", *WHOLE), "has the line 'print\\(\\)' before its function"),
        (("@decorated", *WHOLE), "has the line '@decorated'"),
        ((*WHOLE, "print()"), "has something else than the function run"),
        (("def run(x): return x",), "has something else than the function run"),
        (("def run(x):",), "has something else than the function run"),
        (("def other(x):", "  return x"), "has no function run"),
        ((), "has no function run"),
    ],
)
def test_a_source_is_one_function_and_imports_what_was_reviewed(lines, reason):
    assert decode(encode(program_of(trace(*WHOLE)))) == program_of(trace(*WHOLE))
    with pytest.raises(ValueError, match=f"^program.computation {reason}"):
        decode(encode(program_of(trace(*lines))))


@pytest.mark.parametrize(
    "context",
    [
        {"os": ModuleReference("os")},
        {"a b": ModuleReference("torch")},
        {"f": NamedReference("torch", "no name")},
        {"f": NamedReference("torch", "outer.<locals>.f")},
        {"f": NamedReference("tor-ch", "f")},
    ],
)
def test_references_name_what_stored_programs_may_use(context):
    with pytest.raises(ValueError, match="context"):
        decode(encode(program_of(trace(*WHOLE, **context))))


@pytest.mark.parametrize(
    "content",
    [b"", b"fusioncache program 1", b"{}", encode(program_of(trace(*WHOLE))).replace(b'"format":6', b'"format":5', 1)],
)
def test_what_is_no_program_of_this_format_is_none(content):
    with pytest.raises(ValueError, match=r"not strict JSON|format (None|5), not 6"):
        decode(content)
