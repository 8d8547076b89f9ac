"""The golden texts: they exist, differences are shown, and one model agrees with its text."""

import sys
import tempfile

import pytest
from click.testing import CliRunner
from golden import __main__ as command
from golden.texts import DATA, Section, find_differences, list_models, load, name_file, save
from golden.worker import FORWARD, LENGTHS, MODES
from repository import ROOT

from benchmarks import zoo

GOLDEN = [Section("forward, length 24: computation", "t = add(a, b)"), Section("forward, after 2: stats", "hits: 3")]
MOST_BYTES = 2_000_000


def call(monkeypatch, folder, sections, *options):
    monkeypatch.setattr(command, "print_model", lambda model: sections)
    return CliRunner().invoke(command.main, ["gemma", "--folder", str(folder), *options])


def test_parts_that_are_new_or_gone_are_shown():
    lines = find_differences("gemma", GOLDEN, [GOLDEN[0], Section("training: stats", "hits: 4")])
    assert "--- gemma, forward, after 2: stats: golden" in lines and "-hits: 3" in lines
    assert "+++ gemma, training: stats: now" in lines and "+hits: 4" in lines
    assert find_differences("gemma", [*GOLDEN, Section("empty", "")], GOLDEN)[-1] == "-"


def test_the_command_fails_on_a_difference_until_it_is_written(tmp_path, monkeypatch):
    assert call(monkeypatch, tmp_path, GOLDEN).exit_code == 1  # there is no file
    save(name_file(tmp_path, "gemma"), GOLDEN)
    assert call(monkeypatch, tmp_path, GOLDEN).exit_code == 0
    changed = [GOLDEN[0], Section(GOLDEN[1].title, "hits: 2")]
    failed = call(monkeypatch, tmp_path, changed)
    assert failed.exit_code == 1 and "-hits: 3\n+hits: 2\n" in failed.output
    assert call(monkeypatch, tmp_path, changed, "--rewrite").exit_code == 0
    assert call(monkeypatch, tmp_path, changed).exit_code == 0


def test_every_model_of_the_zoo_has_golden_texts_of_all_modes_and_lengths_without_folders_of_a_machine():
    folders = (str(ROOT), sys.prefix, tempfile.gettempdir(), "/site-packages/", "/home/", "/root/")
    assert list_models(DATA) == set(zoo.names())
    assert sum(path.stat().st_size for path in DATA.iterdir()) < MOST_BYTES
    for model in zoo.names():
        sections = load(name_file(DATA, model))
        assert not [each.title for each in sections if any(folder in each.text for folder in folders)], model
        titles = [each.title for each in sections]
        for mode in MODES:
            called = {title.partition(":")[0].split(", ")[1] for title in titles if title.startswith(f"{mode}, ")}
            assert len(called) == len(LENGTHS) + 2, model  # and the counts after two and after all
            assert f"{mode}, after {len(LENGTHS)}: templates" in titles, model


def test_one_model_is_as_its_golden_text_says_in_one_mode():
    pytest.importorskip("litgpt")
    model = "llama-2"
    golden = [each for each in load(name_file(DATA, model)) if each.title.split(",")[0] in ("versions", FORWARD)]
    found = command.print_model(model, [FORWARD])
    if found[0] != golden[0]:
        pytest.skip(f"the golden texts were made with {golden[0].text}")
    assert find_differences(model, golden, found) == []
