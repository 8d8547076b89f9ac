"""The stored bytes of a program: they decode to all of it, other bytes are refused, and the formats are fixed."""

import hashlib
import json

import pytest
import random_regions
from drawn_regions import draw_residual
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import make_placement, make_region_record

from fusioncache.accelerators.programs import build, key, text
from fusioncache.accelerators.programs.text import (
    AgreementReference,
    GroupReference,
    ModuleReference,
    NamedReference,
    ProgramText,
    Read,
    SymbolReference,
    TemplateReference,
    TemplateUse,
    TraceText,
    decode,
    decode_reads,
    encode,
    encode_reads,
)
from fusioncache.ir import Graph, Instance
from fusioncache.ir.keys import INGREDIENTS, Level
from fusioncache.observe.record import region_codec
from fusioncache.observe.record.observations import ChoiceRecord, PlanCost
from fusioncache.template.plan import Plan

HEADS = ("# Constructed by a pass", "import torch", "import thunder.core.dtypes as dtypes", "from torch import Tensor")
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


WHOLE = ("import torch", "", "@torch.no_grad()", "@no_autocast", "def run(x):", "  # x", "", "  return x")


def program_of(*lines: str, **context) -> ProgramText:
    whole = TraceText("run", "\n".join(WHOLE))
    return ProgramText(whole, TraceText("run", "\n".join(lines), context), None, whole)


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
    assert decode(encode(program_of(*WHOLE))) == program_of(*WHOLE)
    with pytest.raises(ValueError, match=f"^program.computation {reason}"):
        decode(encode(program_of(*lines)))


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
        decode(encode(program_of(*WHOLE, **context)))


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
READS = st.lists(st.builds(Read, st.sampled_from(text.KINDS), TEXTS, TEXTS), max_size=5).map(tuple)


@given(READS)
def test_reads_are_what_they_were_before_they_were_bytes(reads):
    assert decode_reads(encode_reads(reads)) == reads


@pytest.mark.parametrize(
    "body",
    [
        {"format": 3, "reads": {}},
        {"format": 3, "reads": [], "more": 1},
        {"format": 3, "reads": [{"kind": "global", "name": "a.b"}]},
        {"format": 3, "reads": [{"kind": "guess", "name": "a.b", "text": ""}]},
        {"format": 3, "reads": [{"kind": "global", "name": 1, "text": ""}]},
    ],
)
def test_what_is_no_json_of_reads_is_refused(body):
    with pytest.raises(ValueError, match="reads"):
        decode_reads(json.dumps(body).encode())


def make_program() -> ProgramText:
    """Returns a program with a reference of each kind."""
    graph = draw_residual(2)
    instance = Instance(graph, tuple(range(len(graph.inputs))), (0,), graph)
    use = TemplateUse((2,), Plan.FOLD, "nvfuser", instance, ((((4, 8), (8, 1)), None),))
    context = {
        "torch": ModuleReference("torch"),
        "silu": NamedReference("torch.nn.functional", "silu", "text"),
        "check_len": SymbolReference("python", "check_len", "text"),
        "template": TemplateReference("eager", (("option", ("a",)), ("other", None)), graph, "0" * 64, (use,)),
        "group": (group := GroupReference(1, "ranks 0,1 of 2 over nccl")),
        "agree": AgreementReference(((group, ("all_gather float32 (2,)",)),)),
    }
    prologue, epilogue = (TraceText(name, f"def {name}(x):\n  return x\n") for name in ("prologue", "epilogue"))
    return ProgramText(prologue, TraceText("run", "def run(x):\n  return x\n", context), None, epilogue, True)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def test_the_ingredients_of_a_key_are_these():
    names = [kind.name for kind in INGREDIENTS.values() if kind.level is Level.PROGRAM]
    expected = [
        *("arguments", "classes", "family format", "function map", "jit options", "model", "program format"),
        *("program versions", "splits format", "state", "variables"),
    ]
    assert (key.FORMAT, sorted(names)) == (6, expected)


def test_the_bytes_of_each_format_are_these():
    """A change of these bytes requires another format number, and a change of this test."""
    reads = encode_reads([Read(kind, f"{kind}.name", "text") for kind in text.KINDS])
    region = make_region_record(3, "h.3", 3, "forward", "0" * 64, trace_number=0, model="GPT", reason=None)
    choice = ChoiceRecord("GPT", "forward", 0, "t3", 4, "fold", (PlanCost("fold", 64, 32, 2),))
    regions = region_codec.encode_regions([region], [choice], [make_placement()])
    assert (text.FORMAT, digest(encode(make_program()))) == (8, "dbf56a8733c992206cb977ff1f436950")
    assert (text.READS_FORMAT, digest(reads)) == (3, "ee276bb81cc641b01caada7e88c70a68")
    assert (region_codec.FORMAT, digest(regions)) == (4, "40abbdbd8ba1f1de6daa03414040efde")
    # The bytecode after the header is Python's, and differs between Python versions.
    header = build.encode_code(make_program()).partition(b"\n")[0].split(b" ")
    assert (build.CODE_FORMAT, header[:3], len(header)) == (1, [b"fusioncache", b"bytecode", b"1"], 6)
