"""The documents say what the committed results say."""

import json
import re
import shlex
from importlib import import_module

import pytest
from repository import DOCS

from benchmarks.figures import make, markdown, readme

_MEASUREMENTS = DOCS / "measurements.md"
_ROWS = [line.split(" | ") for line in _MEASUREMENTS.read_text().splitlines() if line.count(" | ") == 4]
_COMMANDS = [row[1].strip("`") for row in _ROWS if row[1].startswith("`") and not row[1].startswith("`python ")]
_LINKED = re.compile(r"\[`(\w+)`\]\((\S+\.json)\)")
_NAMES = {"step": "b059860"}
"""Commits by what results have in their place."""


def test_the_documents_show_the_committed_results():
    texts = {path: path.read_text() for path in make.DOCUMENTS}
    assert markdown.fill(texts, make.make_figures()) == texts, "run make figures"


@pytest.mark.parametrize("line", _COMMANDS)
def test_the_table_has_commands_that_can_be_run(line):
    name, *options = shlex.split(line.partition("`")[0])
    module = import_module(f"benchmarks.{name}")
    if hasattr(module, "__path__"):
        module = import_module(f"{module.__name__}.__main__")
    assert module.main.make_context(name, options).params


def test_the_table_has_the_commits_of_the_results():
    linked = [(commit, path) for row in _ROWS for commit, path in _LINKED.findall(row[-1])]
    assert len(linked) > len(_COMMANDS) / 2
    for commit, path in linked:
        found = json.loads((_MEASUREMENTS.parent / path).read_text())["environment"]["commit"]
        assert _NAMES.get(found, found)[:7] == commit, path


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


def test_a_table_aligns_numbers_to_the_right():
    assert markdown.make_table(("<name", "count"), [["a", "1"]]) == "| name | count |\n| --- | ---: |\n| a | 1 |\n"


def test_seconds_have_three_digits():
    assert [markdown.format_seconds(value) for value in (0.5, 9.87, 37.18, 284.6)] == ["0.50", "9.87", "37.2", "285"]


def _make_process(way, process, seconds):
    return {"way": way, "process": process, "layers": 32, "seconds": {"total": seconds}}


def _make_lengths(way, *steps):
    points = [{"way": way, "steps": [{"length": length, "seconds": seconds} for length, seconds in steps]}]
    return {"environment": {"options": {"layers": 4}}, "points": points}


def test_the_readme_compares_processes_and_lengths():
    points = [_make_process("programs", "cold", 16.0), _make_process("programs", "warm", 0.5)]
    points += [
        _make_process("torch.compile", "cold", 54.0),
        {**_make_process("torch.compile", "warm", 0), "seconds": None},
    ]
    processes = {"environment": {"gpu": "a GPU"}, "points": points}
    # The third step has a known length, and a length of 1 is every compiler's own case: neither is a later length.
    ours = _make_lengths("fusioncache", (64, 20.0), (96, 25.0), (96, 9.0), (1, 8.0), (65, 0.1), (66, 0.2), (67, 0.3))
    torchs = _make_lengths("torch.compile", (64, 15.0))
    text = readme.compare_starts(processes, {**ours, "points": ours["points"] + torchs["points"]})
    assert text.splitlines()[2:] == [
        "| Llama-2-7b, 32 layers: first process | not measured | 54.0 s | 16.0 s |",
        "| Llama-2-7b, 32 layers: second process | the same | not measured | 0.50 s |",
        "| narrow Llama, 4 layers: second length | not measured | not measured | 25.0 s |",
        "| narrow Llama, 4 layers: each later length | not measured | not measured | 0.20 s |",
    ]
    with_thunder = {**processes, "points": [*points, _make_process("thunder", "cold", 99.0)]}
    assert "first process | 99.0 s |" in readme.compare_starts(with_thunder, ours)
