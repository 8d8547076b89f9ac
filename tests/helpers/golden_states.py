"""States of store and record in which the commands of golden files run, by the headings of these files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import CAST, CHAIN, make_run_ledger, save_other, save_run, save_two_runs
from recorded_templates import (
    STARTED,
    count_compile,
    count_load,
    make_cast_template,
    make_chain_template,
    make_ledger,
    make_scaled_template,
    save_ledger,
)
from report_records import make_placement, make_region_record, save_hostile_run
from repository import ROOT
from saved_programs import FORWARD, OTHER_SILU, OWN_READS, SILU, SavedProgram, make_outline, save_family
from signing_keys import make_signing_key
from store_contents import age_entry, find_entry, find_object, make_artifacts, save

from fusioncache.cache.exchange import push
from fusioncache.cache.packing import save_pack
from fusioncache.cli.report import MOST_ROWS
from fusioncache.ir import Graph, Key, NumberType, Op, Ref, Template, TensorType
from fusioncache.observe.record.database import record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ANY_SIZES, FlightRecord, Line, RegionRecord, Source, ThunderCost
from fusioncache.observe.record.stats import NOT_GIVEN
from fusioncache.process.settings import DIRECTORY
from fusioncache.store import Store, entry
from fusioncache.store.remote import Remote
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline

NOW = STARTED + 3 * 86400
_SETTINGS = "torch.default_dtype float32\ntorch.num_threads {}\ntorch.deterministic 0"
_FILE = ROOT / "tests" / "cli" / "golden" / "runs.txt"
_PROGRAM = SavedProgram()
_CHANGED = SavedProgram({"model": _PROGRAM.texts["model"].replace("1e-05", "1e-06")})
_OTHER_READS = SavedProgram(reads=(("attribute", SILU, OTHER_SILU), ("global", "mine.EPS", "1e-05")), slot="program-1")
_GPT = SavedProgram({"model": "model module mine.GPT"}, name="GPT", seconds=4.0)
CI = make_signing_key("ci")
FULL, PULLED, EMPTY = "a record of two runs, and a store", "a store without a record, as after a pull", "nothing"
LONG = "long names, and lists that are long"
_TEMPLATES = {"chain": CHAIN, "cast": CAST, "cast_new": make_cast_template("cast_new", "nvfuser=0.2.37")}
_RUNS = dict(part.split("\n", 1) for part in _FILE.read_text().removeprefix("## ").split("\n## "))
"""Scripts of the events that runs count, one event a line, by heading."""

_MODEL = "MultimodalRetrievalAugmentedGenerationTransformerWithMixtureOfExpertsForConditionalGeneration"
_SCRIPT = "finetune_the_multimodal_retrieval_augmented_generation_model_on_the_cluster.py"
_LONG_FILE = f"/home/me/projects/multimodal/retrieval_augmented_generation/models/{_SCRIPT}"
_WORDS = "residual_scaled_dot_product_attention_with_rotary_embedding_and_layer_normalization"
_MODULE = "language_model.decoder.transformer_blocks.{}.feed_forward_network.mixture_of_experts.experts.7.projection"
_OPTION = "options_of_the_compiler_for_this_model=(enable: matmul_prologue_fusion, disable: resize_scheduler)"
_NARROW, _WIDE = make_chain_template(_WORDS), make_chain_template(f"{_WORDS}_again", _OPTION)
_LONG_CAST = make_cast_template(f"convert_{_WORDS}")
_TENSOR = "torch.Tensor torch.bfloat16 (32, 4096, 128) (524288, 128, 1) cuda:0 requires_grad"
_INPUTS = [f"a_rather_long_name_of_the_argument_number_{number}" for number in range(6)]
_ARGUMENTS = "\n".join(["args 1 mask", f"args.0 {_TENSOR}", *(f"kwargs.{name} {_TENSOR}" for name in _INPUTS)])
_LONG_READS = (
    OWN_READS[0],
    ("global", f"{_SCRIPT[:-3]}.{_MODEL}.A_CONSTANT", f"'{'the value of a constant that is a text, and long; ' * 4}'"),
)
_LONG_FORWARD = FORWARD.replace("(x, w, None)", f"({', '.join(_INPUTS)})")
_REASON = (
    "a custom operator of the model's own, finetune::scaled_dot_product_attention_with_rotary_embedding, has no "
    "translation"
)


def _count_events(script: str, ledger: Ledger) -> Ledger:
    """Counts the events of a script in a ledger, and returns the ledger."""
    for line in script.splitlines():
        what, *words = shlex.split(line) or [""]
        template = _TEMPLATES.get(words[0]) or make_cast_template(words[0], words[0]) if words else CAST
        numbers = [float(word) for word in words if re.fullmatch(r"[\d.]+", word)]
        match what:
            case "trace":
                ledger.history.begin_trace(words[0])
            case "seconds":
                ledger.history.add_seconds(words[0], *numbers)
            case "count":
                ledger.count(words[0], json.loads(words[1]), of=words[2] if words[2:] else None)
            case "made" | "replayed" | "filled":
                ledger.emit(f"program {what}", model=words[0])
            case "refused":
                ledger.emit("program refused", reason=words[0])
            case "loaded":
                ledger.count_program_loaded(words[0], *numbers)
            case "bypass":
                ledger.count_bypass(words[0], region=words[1:] == ["region"])
            case "region":
                ledger.count_region(template, (), hit=words[1] == "hit")
            case "compile":
                count_compile(ledger, template, *numbers)
            case "load":
                count_load(ledger, template, *numbers)
            case "general":
                ledger.count_general_hit(template, ThunderCost(numbers[0], numbers[0]))
    return ledger


def _lay_full(patch: pytest.MonkeyPatch) -> dict[str, str]:
    save_ledger(patch, _count_events(_RUNS["the first of two runs"], make_run_ledger()))
    save_other(patch, _count_events(_RUNS["the second of two runs"], Ledger()))
    words = _fill_store(Store.open())
    push(Store.open(), Remote(_find_remote()), key=CI)
    save_pack(Store.open(), Path(_find_remote(), "pack"), model="GPT", key=CI)
    return words


def _find_remote() -> str:
    return str(Path(os.environ[DIRECTORY.name]).with_name("remote"))


def _lay_pulled(patch: pytest.MonkeyPatch) -> dict[str, str]:
    words = _lay_full(patch)
    for file in Path(os.environ[DIRECTORY.name]).glob("record-*"):
        file.unlink()
    return words


def _lay_nothing(patch: pytest.MonkeyPatch) -> None:
    _lay_full(patch)
    shutil.rmtree(os.environ[DIRECTORY.name])


def _make_long_ledger() -> Ledger:
    ledger = Ledger()
    ledger.history.begin_trace(_MODEL)
    for template, arities in ((_NARROW, (5,)), (_WIDE, (5,)), (_LONG_CAST, ())):
        ledger.count_region(template, arities, hit=False)
        count_compile(ledger, template, 12345.678)
        ledger.history.add(*(_make_long_region(number, template.key.digest, arities) for number in (0, 31)))
    for number in range(1, 60, 2):
        ledger.count_region(_NARROW, (number,), hit=True)
    for phase, seconds in (("dynamo", 2.25), ("splitting", 2.5), ("other_compilers", 4.75), ("other", 4.5)):
        ledger.history.add_seconds(phase, seconds)
    ledger.count_bypass(f"{NOT_GIVEN}{_REASON}", region=False)
    ledger.count_bypass(f"{NOT_GIVEN}addmm only has an automatic torch fallback in thunder", region=False)
    ledger.count_bypass(_REASON)
    ledger.count("own_sizes", of=_REASON)
    ledger.emit("program refused", reason=f"{_MODEL} has {_REASON}")
    for part in range(1, 12):
        ledger.count_program_loaded(f"{_MODEL} (part {part} of 11)", 0.5, 38.5)
    ledger.count("not_captured", of=_REASON)
    return ledger


def _make_long_region(number: int, digest: str, arities: tuple[int, ...]) -> RegionRecord:
    source = Source(_MODULE.format(number), number, (Line(_LONG_FILE, 1234),))
    place = (_MODEL, "forward", 0, number, f"nvFusion{number}")
    outcome = ("hit", f"compile failed: {_REASON}") if number else ("miss", None)
    return RegionRecord(*place, digest, *outcome, arities, "any sizes", source, 3, 2, 1)


def _fill_long_store(store: Store) -> dict[str, str]:
    """Saves programs, families and executables with long names. Returns the IDs of some by word."""
    keys = []
    for seed in (1, 2):
        lines = [f"model.{_MODULE.format(number)}.dropout_probability {seed + number / 8}" for number in range(24)]
        keys.append({"arguments": _ARGUMENTS, "model": "\n".join([f"model module {_SCRIPT[:-3]}.{_MODEL}", *lines])})
    first = SavedProgram(keys[0], _LONG_READS, name=_MODEL)
    second = SavedProgram(keys[1], _LONG_READS[:1], _LONG_FORWARD, name=f"{_MODEL} (part 12 of 34)")
    reason, sizes = "compares two lengths that the model was given", [(1234, 123456 * number) for number in range(1, 7)]
    outline = make_outline("kwargs['a_rather_long_name_of_the_argument'][1]", reason, f"{_LONG_FILE}:12", sizes)
    words = {
        "PROGRAM": first.save(store)[:12],
        "CHANGED": second.save(store)[:12],
        "FAMILY": save_family(store, "family", outline, _MODEL, _LONG_READS, "args 1")[:12],
        "TEMPLATE": _NARROW.key.digest[:12],
        "OTHER": _WIDE.key.digest[:12],
    }
    settings = {"settings": f"torch.{_WORDS} True\n" * 2}
    _save_executable(store, _LONG_CAST.graph, _WORDS, settings, {"code": b"print()\n"})
    _save_executable(store, _NARROW.graph, _WORDS, settings, {"refused": _REASON.encode()})
    return words


def _save_executable(store, graph, name, environment, artifacts):
    key = make_key(graph, {"backend": "eager", **environment})
    assert store.save(key, "eager", artifacts, name=f"{name}_{key.digest[:8]}", seconds=1.5)
    return key.digest[:12]


def _lay_long(patch: pytest.MonkeyPatch) -> dict[str, str]:
    """Records two runs of scripts, models and modules with long names, and fills the store."""
    words = [_SCRIPT, "--learning-rate", "0.0001", "--gradient-accumulation-steps", "16"]
    save_ledger(patch, _make_long_ledger(), argv=words)
    save_other(patch, _make_long_ledger())
    return _fill_long_store(Store.open())


def _fill_store(store: Store) -> dict[str, str]:
    two, four = ({"settings": _SETTINGS.format(threads), "versions": "torch 2.10.0"} for threads in (2, 4))
    note = {"refused": b"a number among its inputs"}
    words = {
        "EXECUTABLE": _save_executable(store, CAST.graph, "convert", two, {"code": b"print()\n"}),
        "THREADS": _save_executable(store, CAST.graph, "convert", four, {"code": b"print(4)\n"}),
        "NOTE": _save_executable(store, inline(CHAIN.graph, (2,)), "residual_tanh", two, note),
        "PROGRAM": f"{_PROGRAM.save(store)[:12]}-0",
        "CHANGED": _CHANGED.save(store)[:12],
        "GPT": _GPT.save(store)[:12],
        "FAMILY": save_family(store)[:12],
    }
    _OTHER_READS.save(store)
    return words


def _lay_entries(patch, lay_record=None):
    if lay_record:
        lay_record(patch)
    store = Store.open()
    save(store, 1, 2, 3)
    for number in (1, 2, 3):
        age_entry(store, number, number * 86400)
    return {"ENTRY": str(find_entry(store, 2)), "CODE": str(find_object(store, make_artifacts(1)["code"]))}


def _lay_old_runs(patch: pytest.MonkeyPatch) -> None:
    for run, days in (("old", 80), ("new", 5)):
        save_ledger(patch, make_ledger(CHAIN), run=run, started=NOW - days * 86400)


def _lay_other_versions_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entry, "FORMAT", 7)
    save(Store.open(), 4)
    push(Store.open(), Remote(_find_remote()), key=CI)


def _lay_no_database(patch: pytest.MonkeyPatch) -> None:
    record_path().parent.mkdir()
    record_path().write_text("This is no database. " * 1000)


def _lay_loads_again(patch: pytest.MonkeyPatch) -> None:
    """Records a run that compiles a template, and two that load it."""
    save_run(patch)
    ledger = _count_events("region cast miss\nload cast 0.5 28.5", Ledger())
    save_other(patch, ledger)
    save_ledger(patch, ledger, run="ac" + "0" * 30, started=STARTED + 120)


def _lay_newer_program(patch: pytest.MonkeyPatch) -> dict[str, str]:
    patch.setattr(time, "time", lambda: NOW - 60)
    older = _PROGRAM.save(Store.open())
    patch.setattr(time, "time", lambda: NOW)
    return {"FIRST": older[:12], "SECOND": _CHANGED.save(Store.open())[:12]}


def _lay_damaged_program(patch):
    store = Store.open()
    assert store.save(_PROGRAM.make_key(), "program", {"program": b"x", "reads": b"y"}, name="Llama")
    SavedProgram(slot="program-1").save(store)
    return {"FIRST": _PROGRAM.make_key().digest[:12], "SECOND": _CHANGED.save(store)[:12]}


def _save_family(slot="family", outline=None):
    return {"FAMILY": save_family(Store.open(), slot, outline)[:12]}


def _lay_code(patch: pytest.MonkeyPatch) -> dict[str, str]:
    """Records a run, and saves code with source, without source, and of another graph."""
    save_run(patch)
    store, matrix = Store.open(), TensorType("float32", (4, 4), "cpu")
    other = Graph((matrix,), (Op("prims.cos", (Ref(0),), (matrix,)),), (1,))
    wrapper, kernel = b"def call(args):\n    pass\n", b"// k\nint x;\t// \x1b[2J\n"
    for graph, backend, artifacts in (
        (inline(CHAIN.graph, (2,)), "inductor", {"wrapper.py": wrapper, "kernel-0.so": b"x"}),
        (inline(CHAIN.graph, (7,)), "inductor", {"kernel-0.so": b"\xff", "kernels.cpp": kernel}),
        (inline(CHAIN.graph, (3,)), "nvfuser", {"0.cubin": b"\xff", "kernels.cu": kernel}),
        (other, "inductor", {"wrapper.py": b"not this one"}),
    ):
        assert store.save(make_key(graph, {"layout": "any", "backend": backend}), backend, artifacts)
    return {"SOURCE": str(find_object(store, wrapper))}


def _make_any_size() -> Ledger:
    vector = TensorType("float32", (Ref(2),), "cpu")
    graph = Graph((NumberType("float"), vector), (Op("prims.mul", (Ref(0), Ref(1)), (vector,)),), (3,), 1)
    return make_ledger(Template(graph, make_key(graph, {}), "scaled"))


def _make_unreadable() -> Ledger:
    parts = (replace(part, text="cos of it") if part.name == "ops" else part for part in CAST.key.ingredients)
    return make_ledger(Template(CAST.graph, Key("f" * 64, "odd", tuple(parts)), "odd"))


def _make_backends() -> Ledger:
    keys = {"one": {"backend": "eager"}, "two": {"backend": "eagerly"}, "three": {"options": "eager"}}
    return make_ledger(*(Template(CAST.graph, make_key(CAST.graph, key), name) for name, key in keys.items()))


def _make_sizes() -> Ledger:
    """Returns a ledger of templates that differ in sizes; the last one uses a generalization of the others."""
    alike = [make_scaled_template(2, 64), make_scaled_template(2, 96), make_scaled_template(3, 200)]
    ledger = make_ledger(*alike[:2], make_cast_template())
    ledger.count_region(alike[2], (), hit=False)
    ledger.count("generalizations")
    ledger.count_general_hit(alike[2], ThunderCost(0.25, 0.25))
    ledger.count("own_sizes", of="random numbers")
    regions = [make_region_record(number, digest=template.key.digest) for number, template in enumerate(alike)]
    ledger.history.add(regions[0], *(replace(region, plan=ANY_SIZES) for region in regions[1:]))
    return ledger


def _make_collectives() -> Ledger:
    flights = [FlightRecord("gather", "all_gather", 8, 0, 1, 0)] * (MOST_ROWS + 7)
    ledger = Ledger()
    ledger.history.begin_trace("Model")
    ledger.history.add(
        make_placement(),
        make_placement(trace="backward", reason="a trace with collectives writes in place", bounds=()),
        make_placement(trace_number=1, flights=tuple(flights)),
    )
    return ledger


_ODD = {"quoted": 'a "quoted" \\', "letters": "\u00e9\u4e16", "lines": "two\nlines", "percent": "%_", "number": "100"}
_LEDGERS: Mapping[str, Callable[[], Ledger]] = {
    "a run of templates with odd texts": lambda: make_ledger(
        *(make_cast_template(name, f"before {text} after") for name, text in _ODD.items())
    ),
    "a run of templates that name a backend in other ingredients": _make_backends,
    "a run of a template for any sizes": _make_any_size,
    "a run of templates that differ in a size or a number": lambda: make_ledger(
        *(make_scaled_template(2, length) for length in (64, 96, 200)),
        make_scaled_template(2, 64, factor=0.25),
        make_scaled_template(1, 64),
    ),
    "a run of a template of another format": _make_unreadable,
    "a run of templates with two options": lambda: make_ledger(
        make_chain_template("chain_a", "fast_math on"), make_chain_template("chain_b", "fast_math off"), CAST
    ),
    "a run of many sizes": _make_sizes,
    "a run with collectives": _make_collectives,
    **{there: lambda script=script: _count_events(script, Ledger()) for there, script in _RUNS.items()},
}
_RECORDS = {
    "a record of another format": "PRAGMA user_version = 99",
    "a damaged record": "UPDATE templates SET content = '[1]'; UPDATE runs SET content = '[1]'",
    "a record without runs": "DELETE FROM runs",
    "a run that ended": "UPDATE runs SET content = json_set(TEXT, '$.ended', json('true'), '$.updated', started + 90)",
    "two runs of one script": "UPDATE runs SET content = json_set(TEXT, '$.command', 'train.py')",
}
"""SQL that changes the record of two runs, by heading."""
_PROGRAMS = {
    "two programs of one key": (_PROGRAM, _OTHER_READS),
    "a program, and one with another number": (
        _PROGRAM,
        SavedProgram({"model": _PROGRAM.texts["model"].replace("2.0", "3.0")}),
    ),
    "a program, and two of another key with different reads": (
        _CHANGED,
        SavedProgram(reads=()),
        SavedProgram(slot="program-1"),
    ),
    "programs that differ in their traces alone": (
        _PROGRAM,
        SavedProgram(forward=FORWARD.replace("None", "x"), slot="program-1"),
        SavedProgram(forward=f"# Constructed by a pass (took 3 milliseconds)\n{FORWARD}", slot="program-2"),
    ),
    "programs that differ in key, reads and traces": (
        _PROGRAM,
        SavedProgram(_CHANGED.key, _OTHER_READS.reads, FORWARD.replace("linear(x, w, None)", "linear(x, w, x)")),
    ),
    "a program of format 4, with a text of the user's": (
        SavedProgram({"program format": "4", "arguments": "args 0 mask\nkwargs.mask 'zqhunter'"}),
        _PROGRAM,
    ),
    "a program that would move the cursor": (
        SavedProgram(
            {"model": "model \x1b[31m"},
            (("global", "mine.\x1b[31m", "\x1b[31m"),),
            FORWARD.replace("x: ", "x\x1b[31m: "),
            name="\x1b[31mx",
        ),
        _PROGRAM,
    ),
}


def _change_record(script: str, patch: pytest.MonkeyPatch) -> None:
    save_two_runs(patch)
    with closing(sqlite3.connect(record_path())) as database:
        database.executescript(script.replace("TEXT", "CAST(content AS TEXT)"))


def _save_programs(programs: Sequence[SavedProgram], patch: pytest.MonkeyPatch) -> dict[str, str]:
    store = Store.open()
    return {word: each.save(store)[:12] for word, each in zip(("FIRST", "SECOND", "THIRD"), programs, strict=False)}


STATES: Mapping[str, Callable[[pytest.MonkeyPatch], Any]] = {
    FULL: _lay_full,
    PULLED: _lay_pulled,
    EMPTY: _lay_nothing,
    LONG: _lay_long,
    "one run": save_run,
    "two runs": save_two_runs,
    "a run, and two later ones that loaded its template": _lay_loads_again,
    "runs of 80 and of 5 days ago": _lay_old_runs,
    "a command line that would break a table": lambda patch: save_ledger(
        patch, make_ledger(CAST), argv=["a\nb\x1b[31m"]
    ),
    "texts that would do harm": save_hostile_run,
    "a file that is no database": _lay_no_database,
    "three entries": _lay_entries,
    "three entries, and a run": partial(_lay_entries, lay_record=save_run),
    "an entry of another version": _lay_other_versions_entry,
    "a program, and a newer one with the same name": _lay_newer_program,
    "a program that cannot be read": _lay_damaged_program,
    "two families of one key": lambda patch: [_save_family(slot) for slot in ("family-2", "family")][-1],
    "a family that cannot be read": lambda patch: _save_family(outline=b"x"),
    "code of a template": _lay_code,
    **{there: lambda patch, make=make: save_ledger(patch, make()) for there, make in _LEDGERS.items()},
    **{there: partial(_change_record, script) for there, script in _RECORDS.items()},
    **{there: partial(_save_programs, programs) for there, programs in _PROGRAMS.items()},
}
"""Functions that fill fusioncache's directory, by heading; they return the IDs that words in capitals represent."""
