"""What is stored of a program, to the letter: who changes it changes the format as well, and then the test."""

import hashlib

from drawn_regions import draw_residual
from report_records import make_placement, make_region_record

from fusioncache.accelerators.programs import build, key, text
from fusioncache.accelerators.programs.text import (
    AgreementReference,
    GroupReference,
    ModuleReference,
    NamedReference,
    SymbolReference,
    TemplateReference,
    TemplateUse,
    TraceText,
)
from fusioncache.ir import Instance
from fusioncache.ir.keys import INGREDIENTS, Level
from fusioncache.observe.record import kept_regions
from fusioncache.observe.record.observations import ChoiceRecord, PlanCost
from fusioncache.template.plan import Plan


def make_program() -> text.ProgramText:
    """A program with a reference of each kind."""
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
    return text.ProgramText(prologue, TraceText("run", "def run(x):\n  return x\n", context), None, epilogue, True)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def test_the_ingredients_of_a_key_are_these():
    names = [kind.name for kind in INGREDIENTS.values() if kind.level is Level.PROGRAM]
    assert (key.FORMAT, sorted(names)) == (
        6,
        [
            *("arguments", "classes", "family format", "function map", "jit options", "model", "program format"),
            *("program versions", "splits format", "state", "variables"),
        ],
    )


def test_the_bytes_of_a_program_are_these():
    assert (text.FORMAT, digest(text.encode(make_program()))) == (6, "d1dfa504612b30cdc901d0c088ef0536")


def test_the_bytes_of_reads_are_these():
    stored = text.encode_reads([text.Read(kind, f"{kind}.name", "text") for kind in text.KINDS])
    assert (text.READS_FORMAT, digest(stored)) == (2, "38c47d47e99aa7b8ebfa37be4315bee6")


def test_the_bytes_of_regions_are_these():
    region = make_region_record(3, "h.3", 3, "forward", "0" * 64, trace_number=0, model="GPT", reason=None)
    choice = ChoiceRecord("GPT", "forward", 0, "t3", 4, "fold", (PlanCost("fold", 64, 32, 2),))
    stored = kept_regions.encode_regions([region], [choice], [make_placement()])
    assert (kept_regions.FORMAT, digest(stored)) == (4, "40abbdbd8ba1f1de6daa03414040efde")


def test_the_header_of_bytecode_is_this():
    """What follows is Python's own and another one for each of its versions, which the header says."""
    header = build.encode_code(make_program()).partition(b"\n")[0].split(b" ")
    assert (build.CODE_FORMAT, header[:3], len(header)) == (1, [b"fusioncache", b"bytecode", b"1"], 6)
