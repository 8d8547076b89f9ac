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


def test_a_block_is_filled_and_the_rest_stays_and_neither_may_be_missing():
    text = "a\n<!-- figure: x -->\nold\n<!-- end of figure -->\nb\n"
    texts = {"one": text, "other": "c\n"}
    found = markdown.fill(texts, {"x": "| 1 |\n"})
    assert found == {"one": "a\n<!-- figure: x -->\n| 1 |\n<!-- end of figure -->\nb\n", "other": "c\n"}
    assert markdown.fill(found, {"x": "old\n"}) == texts
    for figures in ({}, {"x": "", "y": ""}):
        with pytest.raises(ValueError, match=r"no figure or no place for (x|y)"):
            markdown.fill(texts, figures)


def test_the_table_of_parts_has_a_row_for_each_process_and_says_which_failed():
    parts = {"key": 0.1, "reads": 0.001, "load": 0.02, "build": 0.0, "trace": 0.01, "guards": 0.002, "rest": 0.1}
    points = [
        {"model": "llama", "layers": 8, "way": "fusioncache", "process": "cold", "error": "it died"},
        {"model": "llama", "layers": 8, "way": "fusioncache", "process": "warm", "seconds": {"total": 0.3, **parts}},
    ]
    points[1]["repeats"] = [{"counts": {"traces": 0}}]
    result = {"environment": {"options": {"width": "real"}}, "points": points}
    *_, failed, loaded = starts.tabulate_parts(result).splitlines()
    assert failed.split(" | ")[:4] == ["| Llama-2-7b, 8 layers", "fusioncache", "cold", "failed"]
    assert [cell.strip() for cell in loaded.split("|")[4:8]] == ["0.30 s", "0.01 s", "100 ms", "1 ms"]
