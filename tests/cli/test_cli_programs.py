"""Programs of models on the command line: listed, shown, told apart from what was compiled, explained and compared."""

import json
import re
import time
from dataclasses import replace

import pytest
from commands import call, drop_first_break, get_error, get_output
from kept_programs import FORWARD, OTHER_SILU, OWN_SILU, SILU, TEMPLATE, TENSOR, SavedProgram

from fusioncache.accelerators.programs.text import encode
from fusioncache.cli.things import format_inputs
from fusioncache.store import Store, default_path

NOW = 1_700_000_000.0
PROGRAM = SavedProgram()
CHANGED = SavedProgram({"model": PROGRAM.texts["model"].replace("1e-05", "1e-06")}, name="Llama")
OTHER_READS = SavedProgram(reads=(("attribute", SILU, OTHER_SILU), ("global", "mine.EPS", "1e-05")), slot="program-1")


@pytest.fixture(autouse=True)
def _at_a_known_time(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)


def keep(*programs: SavedProgram) -> list[str]:
    store = Store.open()
    digests = [program.save(store) for program in programs]
    return digests


def test_nothing_of_a_program_of_another_format_is_shown_and_cleaning_up_removes_it():
    """Those before format 5 hold texts of the user's."""
    old = replace(PROGRAM, key={"program format": "4", "arguments": "args 0 mask\nkwargs.mask 'zqhunter'"})
    (digest, other) = keep(old, PROGRAM)
    for command in (
        ["ls", "--programs"],
        ["show", digest],
        ["explain", digest],
        ["explain", other],
        ["diff", digest, other],
    ):
        assert "zqhunter" not in call(*command).output, command
    store = Store.open()
    assert store.sweep().entries == 1
    assert [entry.digest for entry in store.entries()] == [other]


def test_a_list_of_programs_has_at_most_100_columns():
    keep(SavedProgram(PROGRAM.key, name="Net" * 40))
    assert max(map(len, get_output("ls", "--programs").splitlines())) <= 100
    assert "Net" * 40 in get_output("ls", "--programs", "--wide")


@pytest.mark.parametrize(
    ("options", "names"),
    [(("--name", "Ll"), ["Llama"]), (("--name", "x"), []), (("--sort", "seconds"), ["Llama", "GPT"])],
)
def test_filters_and_orders(options, names):
    keep(PROGRAM, SavedProgram({"model": "model module mine.GPT"}, name="GPT", seconds=1.0))
    found = call("ls", "--programs", *options, "--json")
    assert [program["name"] for program in json.loads(found.stdout)["programs"]] == names
    assert found.stderr == ("" if names else f"{default_path()} has 2 programs; none matches.\n")


def test_what_cannot_be_read_is_listed_all_the_same():
    store = Store.open()
    assert store.save(PROGRAM.make_key(), "program", {"program": b"x", "reads": b"y"}, name="Llama")
    assert "  damaged  " in get_output("ls", "--programs")
    id_ = PROGRAM.make_key().digest[:12]
    error = get_error("show", "Llama", "--trace", "forward")
    assert error.startswith(f"Error: the program of {id_} cannot be read: program is not strict JSON")
    assert f"the reads of {id_} cannot be read: " in get_error("show", "Llama", "--reads")


def test_warm_leaves_programs_of_models_alone():
    keep(PROGRAM)
    data = json.loads(get_output("warm", "--dry-run", "--json"))
    assert (data["known"], data["ready"], data["compiled"], data["refused"]) == (0, 0, 0, {})


def test_verify_prune_and_clear_treat_them_as_all_entries():
    keep(PROGRAM, OTHER_READS)
    assert get_output("verify").startswith("2 entries and 3 objects (")
    assert get_output("prune", "--max-bytes", "1", "--dry-run").startswith("would remove 2 entries and 3 objects")
    get_output("clear", "--store", "-y")
    assert "has no programs." in call("ls", "--programs").stderr


def test_several_programs_of_one_key_go_by_their_slots():
    digest, _ = keep(PROGRAM, OTHER_READS)
    assert f"\n  {digest[:12]}-1  program     Llama  float32[2, 16] cpu, mask=None" in get_error("show", "Llama")
    for number, silu in ((0, OWN_SILU), (1, OTHER_SILU)):
        assert silu in get_output("show", f"{digest[:12]}-{number}", "--reads")


def test_the_line_of_the_model_that_says_what_differs():
    scale = SavedProgram({"model": PROGRAM.texts["model"].replace("2.0", "3.0")})
    digest, _ = keep(PROGRAM, scale)
    line = get_output("explain", digest[:12]).splitlines()[1]
    assert line == "  /home/me/model.py:31: return F.silu(self.lin(x)) * self.scale"


def test_a_models_name_is_its_newest_program(monkeypatch):
    (digest,) = keep(PROGRAM)
    monkeypatch.setattr(time, "time", lambda: NOW + 60)
    (newer,) = keep(CHANGED)
    assert get_output("explain", "Llama").splitlines()[2].startswith(f"A  {newer[:12]}  ")
    assert "stands for 2 programs" in get_error("explain", "Llam")
    assert get_output("explain", newer[:12], digest[:12]) == get_output("explain", "Llama")


def test_of_several_with_the_nearest_key_the_one_with_the_nearest_reads_is_compared():
    digest, *_ = keep(CHANGED, SavedProgram(reads=(), slot="program"), SavedProgram(slot="program-1"))
    (shown,) = [line for line in get_output("explain", digest[:12]).splitlines() if line.startswith("B  ")]
    assert shown.split()[1].endswith("-1")


def test_a_program_whose_reads_cannot_be_read_is_compared_last():
    digest, *_ = keep(CHANGED, SavedProgram(slot="program-1"))
    store = Store.open()
    artifacts = {"program": encode(PROGRAM.make_text()), "reads": b"x"}
    assert store.save(PROGRAM.make_key(), "program", artifacts, name="Llama")
    assert re.search(r"^B  \w+-1  ", get_output("explain", digest[:12]), re.MULTILINE)


def test_programs_that_differ_in_their_traces_alone():
    other = SavedProgram(forward=FORWARD.replace("None", "x"), slot="program-1")
    later = SavedProgram(forward=f"# Constructed by a pass (took 3 milliseconds)\n{FORWARD}", slot="program-2")
    digest, *_ = keep(PROGRAM, other, later)
    said = "Their keys and all that was read are the same, and they differ in the forward trace.\n"
    assert get_output("explain", f"{digest[:12]}-0", f"{digest[:12]}-1").startswith(said)
    assert get_output("explain", f"{digest[:12]}-0", f"{digest[:12]}-2").startswith("They do not differ.\n")
    assert get_output("diff", f"{digest[:12]}-0", f"{digest[:12]}-2").startswith("They do not differ.\n")


def test_diff_shows_all_that_differs():
    changed = SavedProgram(CHANGED.key, OTHER_READS.reads, FORWARD.replace("linear(x, w, None)", "linear(x, w, x)"))
    a, b = keep(PROGRAM, changed)
    explained, _, traces = get_output("diff", a[:12], b[:12]).partition("\n\nforward\n")
    assert explained == get_output("explain", a[:12], b[:12]).rstrip("\n") and explained.count("\n`") == 2
    assert traces == drop_first_break(f"""
--- A {a[:12]}
+++ B {b[:12]}
@@ -7,6 +7,6 @@
   # x: "cpu f32[2, 16]"
{" "}
   # /home/me/model.py:31: \t        return F.silu(self.lin(x)) * self.scale
-  t1 = torch.nn.functional.linear(x, w, None)  # t1: "cpu f32[2, 16]"
+  t1 = torch.nn.functional.linear(x, w, x)  # t1: "cpu f32[2, 16]"
   [t2] = {TEMPLATE.name}(t1)
   return (t2,)
""")
    data = json.loads(get_output("diff", a[:12], b[:12], "--json"))
    assert (len(data["key"]), len(data["reads"]), list(data["traces"])) == (1, 1, ["forward"])
    assert get_output("diff", a[:12], a[:12]).startswith("Both IDs name the same program: ")


def test_nothing_in_a_program_moves_the_cursor():
    hostile = SavedProgram(
        {"model": "model \x1b[31m"},
        (("global", "mine.\x1b[31m", "\x1b[31m"),),
        FORWARD.replace("x: ", "x\x1b[31m: "),
        name="\x1b[31mx",
    )
    keep(hostile, PROGRAM)
    for command in (
        ("ls", "--programs"),
        ("show", "\x1b[31mx"),
        ("explain", "\x1b[31mx"),
        ("diff", "\x1b[31mx", "Llama"),
    ):
        assert "\x1b" not in get_output(*command)
    assert "\x1b" not in get_output("show", "\x1b[31mx", "--trace", "forward")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (TENSOR, "float32[2, 16] cpu"),
        (
            "torch.Tensor torch.bfloat16 (4,) (1,) cuda:0 requires_grad of MulBackward0",
            "bfloat16[4] cuda:0 of MulBackward0",
        ),
        ("torch.Tensor torch.int64 () () cpu", "int64[] cpu"),
        (f"[{TENSOR}, 3, ]", "[float32[2, 16] cpu, 3, ]"),
        ("'a text'", "'a text'"),
        ("x" * 100, "x" * 47 + "…"),
    ],
)
def test_kinds_of_inputs_in_short(text, short):
    assert format_inputs(f"args 1\nargs.0 {text}\nargs.0.deep 3") == short
    assert format_inputs(f"args 0 a\nkwargs.a {text}") == f"a={short}"
    assert format_inputs("") == ""
