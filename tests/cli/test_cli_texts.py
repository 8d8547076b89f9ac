"""Texts that commands take and print, IDs among them, and what golden files do not show of ``stats``."""

import json

import pytest
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, get_output, save_run, save_two_runs
from kept_programs import TENSOR, SavedProgram
from recorded_templates import STARTED, make_cast_template, make_full_ledger, save_ledger
from report_records import HOSTILE

from fusioncache.cli.console import AGE, BYTES
from fusioncache.cli.things import find_candidates, format_inputs
from fusioncache.humanize import escape_controls, fold_text, format_duration
from fusioncache.observe.record import database
from fusioncache.observe.record.observations import Run, find_script
from fusioncache.observe.record.stats import Stats
from fusioncache.store import Store
from fusioncache.template.key import make_key


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *((BYTES, "1", 1), (BYTES, "2kB", 2000), (BYTES, "1.5 MiB", 1.5 * 2**20), (BYTES, "3GB", 3e9)),
        *((AGE, "90", 90), (AGE, "2h", 7200), (AGE, "1w", 7 * 86400), (AGE, "0.5d", 43200)),
    ],
)
def test_sizes_and_ages(kind, text, expected):
    assert kind.convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.0123456, "12.3 ms"), (0.99949, "999 ms"), (0.9996, "1 s"), (2.5, "2.5 s"), (1234.5, "1,234 s")],
)
def test_seconds(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (TENSOR, "float32[2, 16] cpu"),
        ("torch.Tensor torch.int64 () () cuda:0 requires_grad of MulBackward0", "int64[] cuda:0 of MulBackward0"),
        (f"[{TENSOR}, 3, ]", "[float32[2, 16] cpu, 3, ]"),
        ("x" * 100, "x" * 47 + "…"),
    ],
)
def test_kinds_of_inputs_in_short(text, short):
    assert format_inputs(f"args 1\nargs.0 {text}\nargs.0.deep 3") == short
    assert format_inputs(f"args 0 a\nkwargs.a {text}") == f"a={short}"
    assert format_inputs("") == ""


@pytest.mark.parametrize(
    ("models", "name"), [("ABCD", "train.py · A, B and 2 more · "), ("A", "train.py · A · "), ("", "train.py · ")]
)
def test_names_of_runs(models, name):
    run = Run("a", STARTED, 1, "train.py --depth", Stats(), models=tuple(models))
    assert run.name.startswith(f"{name}2023-11-14")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(("/home/me/train.py -x", "train.py"), ("'/my home/train it.py'", "train it.py")),
        *(("/lib/package/__main__.py run", "package"), ("/lib/ipykernel_launcher.py -f x", "notebook")),
        *(("-c", "python -c"), ("''", "python"), ("", "python"), ("'not closed", "'not closed")),
    ],
)
def test_names_of_scripts(command, name):
    assert find_script(command) == name


def test_commands_and_units_stay_on_one_line():
    text = "it took 125 ms: see 'fusioncache ls --programs'"
    for width in range(29, 60):
        folded = fold_text(text, width, indent=2)
        assert all(any(whole in line for line in folded) for whole in ("125 ms", "'fusioncache ls --programs'"))
        assert max(map(len, folded)) <= width


def test_one_line_leaves_what_can_be_printed():
    assert escape_controls("caf\u00e9 'x' \\n\t\u202e") == "caf\u00e9 'x' \\n\\t\\u202e"


def test_whatever_a_run_says_it_fits_a_screen(monkeypatch):
    ledger = make_full_ledger()
    for model in ("Generator", "Discriminator", HOSTILE, "Fourth"):
        ledger.history.begin_trace(model)
    for number in range(40):
        ledger.count_bypass(f"reason {number}, which is a long one because it says very much of what there is to say")
        ledger.emit("unkept", reason=f"cannot be stored: reason {number}")
    ledger.count("verified")
    save_ledger(monkeypatch, ledger, argv=["/home/me/" + "long_" * 30 + "name.py", HOSTILE])
    shown = get_output("stats").splitlines()
    assert len(shown) <= 30 and max(map(len, shown)) <= 80
    assert shown[0].endswith("  (run aaaaaaaa)") and "…" in shown[0]
    assert not any("\x1b" in line for line in shown)


def test_all_runs_are_counted_once_those_too_that_were_forgotten(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "MOST_RUNS", 1)
        save_two_runs(monkeypatch)
    assert [run["id"] for run in json.loads(get_output("stats", "--runs", "--json"))["runs"]] == [OTHER_RUN]
    counts = {"since": STARTED, "runs": 2, "regions": 8, "hits": 3, "compiles": 4, "loads": 1}
    seconds = {"compile_seconds": 3.125, "load_seconds": 0.00390625, "saved_seconds": 6.08984375}
    assert json.loads(get_output("stats", "--json"))["lifetime"] == counts | seconds
    save_run(monkeypatch)  # it was forgotten, and goes on
    assert len(json.loads(get_output("stats", "--runs", "--json"))["runs"]) == 2
    assert json.loads(get_output("stats", "--json"))["lifetime"]["regions"] == 8


ALL = ("run", "template", "executable", "program", "family")
EXECUTABLE = make_key(CAST.graph, {"backend": "eager"})
PROGRAM = SavedProgram()


@pytest.fixture
def _subjects(monkeypatch):
    """Two runs with two templates; in the store an executable and two programs of one key."""
    save_two_runs(monkeypatch)
    store = Store.open()
    assert store.save(EXECUTABLE, "eager", {"code": b"x"}, name="convert_1")
    assert store.save(make_cast_template(options="same").key, "eager", {"code": b"y"}, name="other_1")
    PROGRAM.save(store)
    SavedProgram(slot="program-1").save(store)


@pytest.mark.usefixtures("_subjects")
@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        *((text, ["template"]) for text in (CHAIN.key.digest, CHAIN.key.digest[:6], CHAIN.name, "residual")),
        *((text, ["executable"]) for text in (EXECUTABLE.digest, EXECUTABLE.digest[:6], "other_1")),
        (f"{EXECUTABLE.digest}.eager", ["executable"]),
        (PROGRAM.make_key().digest, ["program", "program"]),
        (f"{PROGRAM.make_key().digest[:6]}-1", ["program"]),
        ("Llama", ["program", "program"]),
        *((text, ["run"]) for text in (FIRST_RUN, "train.py", "last")),
        *(("nosuch", []), ("", [])),
    ],
)
def test_what_an_id_stands_for(wanted, kinds):
    assert [one.kind for one in find_candidates(wanted, None, ALL)] == kinds
