"""The documents say what the committed results say, which name no path and no host, and none of which is unused."""

import json
import re

import pytest
from repository import DOCS, ROOT

from benchmarks.figures import make, markdown, starts
from benchmarks.figures.catalogue import CATALOGUE, Entry, tabulate_commands

ENTRIES = [entry for entries in CATALOGUE.values() for entry in entries]
COMMANDS = [entry.command for entry in ENTRIES if not entry.command.startswith("python ")]
RESULTS = make.list_results()
_PATH = re.compile(r"(?<![\w.])(/(home|root|tmp|usr|var|work|opt|mnt|data|workspace|Users)/|[A-Z]:\\)")


def test_the_documents_show_the_committed_results():
    texts = {path: path.read_text() for path in make.DOCUMENTS}
    assert markdown.fill(texts, make.make_figures()) == texts, "run make figures"


def test_the_table_has_all_benchmarks():
    modules = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]
    modules += (ROOT / "benchmarks").glob("*/__main__.py")
    names = {path.stem if path.stem != "__main__" else path.parent.name for path in modules}
    assert names == {command.partition(" ")[0] for command in COMMANDS}


def test_a_row_has_minutes_machine_and_commit_of_its_results():
    result = {"seconds": 61.0, "environment": {"gpu": "NVIDIA H200", "commit": "step"}}
    old = {"environment": {"gpu": None, "cpus": 1, "commit": "0123456789"}}
    entry = Entry("Why?", "store", ("a/new", "b/old"), minutes=9)
    row = tabulate_commands([entry], {"a/new": result, "b/old": old}).splitlines()[2]
    assert row.startswith(
        "| Why? | `store` | 2 | H200, 1 CPU | [`b059860`](../benchmarks/results/a/new.json), [`0123456`]"
    )


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_result_names_no_path_of_its_machine_and_is_used(path):
    text = path.read_text()
    assert not _PATH.findall(text)
    environment = json.loads(text)["environment"]
    assert {"gpu", "versions", "commit", "options"} <= environment.keys()


def test_each_result_is_shown_or_linked():
    texts = [file.read_text() for file in (ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("fusioncache/**/*.py"))]
    shown = set(re.findall(r"results/(\w+/[\w-]+)\.json", " ".join(texts)))
    shown |= {f"h200/{name}" for name in re.findall(r"results/([\w-]+)\.json", " ".join(texts))}
    code = (ROOT / "benchmarks" / "figures" / "make.py").read_text()
    unused = [
        path
        for path in RESULTS
        if f"{path.parent.name}/{path.stem}" not in shown
        and not any(word in code for word in (f'"{path.stem}"', f'"{path.stem.removeprefix("prices-")}"'))
    ]
    assert not unused


def test_a_block_is_filled_and_the_rest_stays():
    text = "a\n<!-- figure: x -->\nold\n<!-- end of figure -->\nb\n"
    texts = {"one": text, "other": "c\n"}
    found = markdown.fill(texts, {"x": "| 1 |\n"})
    assert found == {"one": "a\n<!-- figure: x -->\n| 1 |\n<!-- end of figure -->\nb\n", "other": "c\n"}
    assert markdown.fill(found, {"x": "old\n"}) == texts


@pytest.mark.parametrize("figures", [{}, {"x": "", "y": ""}])
def test_a_block_without_a_figure_and_a_figure_without_a_block_are_refused(figures):
    with pytest.raises(ValueError, match=r"no figure or no place for (x|y)"):
        markdown.fill({"one": "<!-- figure: x -->\n<!-- end of figure -->"}, figures)


def test_tables_align_numbers_to_the_right_and_seconds_have_three_digits():
    assert markdown.make_table(("<name", "count"), [["a", "1"]]) == "| name | count |\n| --- | ---: |\n| a | 1 |\n"
    assert [markdown.format_seconds(value) for value in (0.5, 9.87, 37.18, 284.6)] == ["0.50", "9.87", "37.2", "285"]


def make_process(way, process, seconds, **more):
    return {"way": way, "process": process, "layers": 32, "seconds": {"total": seconds, **more}}


def test_the_readme_compares_processes():
    points = [make_process("fusioncache", "cold", 16.0), make_process("fusioncache", "warm", 0.5)]
    points += [make_process("torch.compile", "cold", 54.0), {**points[0], "way": "thunder", "seconds": None}]
    processes = {"environment": {"gpu": "a GPU", "options": {}}, "points": points}
    text = starts.compare_starts(processes)
    assert text.splitlines()[2:] == [
        "| Llama-2-7b, 32 layers: first process | not measured | 54.0 s | 16.0 s |",
        "| Llama-2-7b, 32 layers: second process | the same | not measured | 0.50 s |",
    ]


def test_tables_of_starts_have_a_row_for_each_way_and_for_each_depth():
    later = {"later": {"step": 0.0015}}
    points = [{**make_process("thunder", name, 3.0, children=1.0), "model": "m", **later} for name in ("cold", "warm")]
    assert "| m | thunder | 3.00 s | 1.00 s | 1.00 | 3.00 s | 1.50 ms |" in starts.tabulate_cpu_starts(
        {"points": points}
    )
    counts = {"counts": {"compiles": 6, "canonicalize_seconds": 0.1}}
    point = {**make_process("own", "cold", 1.0, compile=0.5), **counts}
    assert "| 32 | 6 | 0.50 | 1.00 s | 10.0% |" in starts.tabulate_modes({"points": [point]})


def test_the_table_of_parts_has_a_row_for_each_process_and_says_which_failed():
    parts = {"key": 0.1, "reads": 0.001, "load": 0.02, "build": 0.0, "trace": 0.01, "guards": 0.002, "rest": 0.1}
    points = [
        {"model": "llama", "layers": 8, "way": "fusioncache", "process": "cold", "error": "it died"},
        {**make_process("fusioncache", "warm", 0.3, **parts), "model": "llama", "repeats": [{"counts": {"traces": 0}}]},
    ]
    options = {"width": "real"}
    *_, failed, loaded = starts.tabulate_parts({"environment": {"options": options}, "points": points}).splitlines()
    assert failed.split(" | ")[:4] == ["| Llama-2-7b, 8 layers", "fusioncache", "cold", "failed"]
    assert [cell.strip() for cell in loaded.split("|")[4:8]] == ["0.30 s", "0.01 s", "100 ms", "1 ms"]
