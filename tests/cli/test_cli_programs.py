"""Programs of models on the command line: listed, shown, told apart from what was compiled, explained and compared."""

import json
import re
import time
from dataclasses import replace

import pytest
from commands import CAST, call, drop_first_break, get_error, get_output, save_run
from kept_programs import FORWARD, OTHER_SILU, OWN_SILU, SILU, TEMPLATE, TENSOR, SavedProgram
from recorded_templates import make_ledger, save_ledger
from store_contents import save as fill

from fusioncache.accelerators.programs.text import CudaGraphReference, TraceText, encode, encode_reads
from fusioncache.cli.things import format_inputs
from fusioncache.observe.record.ledger import Ledger
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


def test_the_programs_of_models_are_listed(monkeypatch):
    (digest,) = keep(PROGRAM)
    monkeypatch.setattr(time, "time", lambda: NOW + 3 * 86400)
    head, row = get_output("ls", "--programs").splitlines()
    assert head.split() == ["id", "name", "inputs", "templates", "size", "age", "used", "seconds"]
    start, name, rest = row.split(maxsplit=2)
    assert (start, name) == (digest[:12], "Llama")
    assert rest.startswith("float32[2, 16] cpu, mask=None  ") and rest.endswith(" 38.500") and " 3 d " in rest


def test_a_list_of_programs_fits_where_nobody_says_how_wide_it_may_be():
    name = "WhisperForConditionalGeneration (part 11 of 12)"
    many = "\n".join(["args 20", *(f"args.{place} {TENSOR}" for place in range(20))])
    keep(SavedProgram({"arguments": many}, name=name))
    head, row = get_output("ls", "--programs").splitlines()
    assert max(map(len, (head, row))) <= 100
    assert row.split("  ")[1].startswith("WhisperForCond") and "part 11 of 12)"[-9:] in row
    assert (
        f"  {name}  " in get_output("ls", "--programs", "--wide")
        and len(get_output("ls", "--programs", "--wide")) > 300
    )


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


def test_the_programs_of_models_as_json():
    digest, other = keep(PROGRAM, OTHER_READS)
    assert digest == other
    data = json.loads(get_output("ls", "--programs", "--json", "--sort", "name", "--limit", "1"))
    (program,) = data.pop("programs")
    assert data == {"schema": 2, "store": str(default_path())}
    assert program.pop("used") > 0 and program.pop("pid") > 0 and program.pop("size") > 1000
    assert isinstance(program.pop("host"), str)
    about = {"id": f"{digest[:12]}-0", "digest": digest, "slot": "program", "name": "Llama", "created": NOW}
    inputs = "float32[2, 16] cpu, mask=None"
    assert program == {**about, "seconds": 38.5, "inputs": inputs, "templates": [TEMPLATE.name]}


@pytest.mark.parametrize(
    ("options", "names"),
    [(("--name", "Ll"), ["Llama"]), (("--name", "x"), []), (("--sort", "seconds"), ["Llama", "GPT"])],
)
def test_filters_and_orders(options, names):
    keep(PROGRAM, SavedProgram({"model": "model module mine.GPT"}, name="GPT", seconds=1.0))
    found = call("ls", "--programs", *options, "--json")
    assert [program["name"] for program in json.loads(found.stdout)["programs"]] == names
    assert found.stderr == ("" if names else f"{default_path()} has 2 programs; none matches.\n")


@pytest.mark.parametrize(
    "options", [("--store",), ("--backend", "eager"), ("--run", "a"), ("--text", "x"), ("--sort", "hits")], ids=" ".join
)
def test_options_that_are_not_about_programs_of_models(options):
    assert "--programs" in get_error("ls", "--programs", *options, code=2)


def test_what_cannot_be_read_is_listed_all_the_same():
    store = Store.open()
    assert store.save(PROGRAM.make_key(), "program", {"program": b"x", "reads": b"y"}, name="Llama")
    assert "  damaged  " in get_output("ls", "--programs")
    id_ = PROGRAM.make_key().digest[:12]
    error = get_error("show", "Llama", "--trace", "forward")
    assert error.startswith(f"Error: the program of {id_} cannot be read: program is not strict JSON")
    assert f"the reads of {id_} cannot be read: " in get_error("show", "Llama", "--reads")


def test_programs_of_models_are_not_what_was_compiled(monkeypatch):
    save_run(monkeypatch)
    store = Store.open()
    fill(store, 1)
    (digest,) = keep(PROGRAM)
    assert [one["name"] for one in json.loads(get_output("ls", "--store", "--json"))["executables"]] == ["template_1"]
    counts = json.loads(get_output("stats", "--json"))["store"]
    assert (counts["executables"], counts["programs"]) == (1, 1)
    assert "\nstore       1 executable and 1 program, " in get_output("stats")
    assert "is a program (Llama), and this command takes a template" in get_error("graph", digest[:12])
    assert "is a program (Llama), and this command takes a template" in get_error("explain", CAST.name, digest[:12])
    assert json.loads(get_output("show", CAST.name, "--json"))["digest"] == CAST.key.digest


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


def test_show_says_what_is_known_of_a_program():
    (digest,) = keep(PROGRAM)
    text = get_output("show", digest[:8])
    shown = dict(line.split(maxsplit=1) for line in text.partition("\n\n")[0].splitlines())
    assert {name: shown[name] for name in ("id", "digest", "name", "inputs", "templates")} == {
        **{"id": digest[:12], "digest": digest, "name": "Llama", "templates": TEMPLATE.name},
        "inputs": format_inputs(f"args.0 {TENSOR}\nkwargs.mask None"),
    }
    key, reads = text.split("\n\n")[1:]
    assert key.startswith("key\n  ingredient        lines  digest\n  arguments             3  ")
    assert reads == drop_first_break(f"""
2 reads
  kind       name                      value
  attribute  {SILU}  {OWN_SILU}
  global     mine.EPS                  1e-05
""")


def test_show_prints_traces_and_reads():
    keep(PROGRAM)
    forward = FORWARD.replace("CALL", TEMPLATE.name)
    assert get_output("show", "Llama", "--trace", "forward") == forward
    both = get_output("show", "Llama", "--trace", "prologue", "--trace", "epilogue")
    assert both == "def prologue(*args):\n  return args\n\n\ndef epilogue(x):\n  return x\n"
    assert get_output("show", "Llama", "--reads").startswith("2 reads\n")
    data = json.loads(get_output("show", "Llama", "--json"))
    assert data["traces"]["forward"] == forward and set(data["traces"]) == {"prologue", "forward", "epilogue"}
    assert data["reads"][1] == {"kind": "global", "name": "mine.EPS", "text": "1e-05"}
    assert [part["name"] for part in data["key"]] == sorted(PROGRAM.texts)
    only = json.loads(get_output("show", "Llama", "--trace", "forward", "--json"))
    assert only["traces"] == {"forward": forward} and not {"key", "reads"} & only.keys()


def test_parts_that_cuda_graphs_capture_stand_before_the_trace_that_calls_them():
    inner = TraceText("graph1", "def graph1(x):\n  return x\n")
    outer = TraceText("computation", FORWARD, {"graph1": CudaGraphReference(inner, None)})
    store = Store.open()
    artifacts = {"program": encode(replace(PROGRAM.make_text(), computation=outer)), "reads": encode_reads(())}
    assert store.save(PROGRAM.make_key(), "program", artifacts, name="Llama")
    assert get_output("show", "Llama", "--trace", "forward") == f"{inner.source}\n\n{FORWARD}"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("Llama", "--ops"), 2, "--ops shows a part of a template, and Llama is a program"),
        (("nobody", "--trace", "forward"), 1, "no ID or name starts with 'nobody'"),
        (("nobody", "--reads"), 1, "'fusioncache ls --programs' lists programs"),
        (("Llama", "--trace", "sideways"), 2, "'sideways' is not one of"),
    ],
)
def test_what_show_refuses(arguments, code, message):
    keep(PROGRAM)
    assert message in " ".join(get_error("show", *arguments, code=code).split())


def test_several_programs_of_one_key_go_by_their_slots():
    digest, _ = keep(PROGRAM, OTHER_READS)
    assert f"\n  {digest[:12]}-1  program     Llama  float32[2, 16] cpu, mask=None" in get_error("show", "Llama")
    for number, silu in ((0, OWN_SILU), (1, OTHER_SILU)):
        assert silu in get_output("show", f"{digest[:12]}-{number}", "--reads")


def test_explain_names_the_line_of_the_key_that_differs():
    digest, other = keep(PROGRAM, CHANGED)
    expected = drop_first_break(f"""
They differ in `model.layers.0.eps`: 1e-05 in A, 1e-06 in B.

A  {digest[:12]}  Llama  float32[2, 16] cpu, mask=None
B  {other[:12]}  Llama  float32[2, 16] cpu, mask=None

differs               A      B
`model.layers.0.eps`  1e-05  1e-06
""")
    assert get_output("explain", digest[:12]) == get_output("explain", digest[:12], other[:12]) == expected
    data = json.loads(get_output("explain", digest[:12], "--json"))
    assert (data["a"]["digest"], data["b"]["digest"], data["line"]) == (digest, other, None)
    (difference,) = data["differences"]
    assert (difference["where"], difference["before"], difference["after"]) == ("model", "1e-05", "1e-06")


def test_explain_names_the_read_that_differs_with_its_line():
    digest, _ = keep(PROGRAM, OTHER_READS)
    keep(SavedProgram({"model": "model module mine.GPT"}, name="GPT"))
    sentence, line, *_ = get_output("explain", f"{digest[:12]}-0").splitlines()
    assert sentence.startswith(f"They differ in `{SILU}`: <function torch.nn.functional.silu 0476c026 ")
    assert line.startswith("  ") and line.endswith(": def silu(input: Tensor, inplace: bool = False) -> Tensor:")


def test_the_line_of_the_model_that_says_what_differs():
    scale = SavedProgram({"model": PROGRAM.texts["model"].replace("2.0", "3.0")})
    digest, _ = keep(PROGRAM, scale)
    line = get_output("explain", digest[:12]).splitlines()[1]
    assert line == "  /home/me/model.py:31: return F.silu(self.lin(x)) * self.scale"


def test_explain_of_one_that_is_alone_or_the_same():
    digest, *_ = keep(PROGRAM)
    assert "is the only program in the store" in get_error("explain", "Llama")
    assert get_output("explain", digest[:12], "Llama").startswith("Both IDs name the same program: ")


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


def test_explain_of_nothing_that_is_there_names_all_places():
    keep(PROGRAM)
    assert "nobody" in get_error("explain", "nobody")


def test_explain_says_what_became_of_the_programs_of_a_run(monkeypatch):
    ledger = make_ledger(CAST)
    ledger.emit("program made", model="GPT")
    ledger.emit("program refused", reason="a lock")
    save_ledger(monkeypatch, ledger)
    said = "\nprograms: 1 traced and stored; 1 not stored or not used: a lock (1)\n"
    assert get_output("explain").endswith(said)
    programs = {"loaded": 0, "made": 1, "refused": {"a lock": 1}}
    assert json.loads(get_output("explain", "--json"))["programs"] == programs


def test_explain_of_a_run_that_only_loaded(monkeypatch):
    ledger = Ledger()
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    save_ledger(monkeypatch, ledger)
    assert call("explain").stdout == "programs: 1 loaded, which took 8 s to trace before\n"


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


def test_diff_takes_runs_first(monkeypatch):
    save_run(monkeypatch)
    a, b = keep(PROGRAM, CHANGED)
    assert f"\nA  {a[:12]}  " in get_output("diff", a[:12], b[:12])
    assert get_output("diff", "train.py", "train.py").startswith("Both IDs name the same run: ")
    assert "--dir names a store" in get_error("diff", "train.py", "--dir", str(default_path()), code=2)
    assert "no ID or name starts with 'nobody'" in get_error("diff", a[:12], "nobody")


def test_another_store(tmp_path):
    store = Store.open(tmp_path / "there")
    digests = [program.save(store) for program in (PROGRAM, CHANGED)]
    there = ("--dir", str(tmp_path / "there"))
    assert get_output("ls", "--programs", *there).count("Llama") == 2
    assert get_output("show", digests[0], *there).startswith("id ")
    assert get_output("explain", digests[0], *there).startswith("They differ in `model.layers.0.eps`")
    assert "\nA  " in get_output("diff", *digests, *there)
    assert "no ID or name starts with 'Llama'" in get_error("show", "Llama")


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
