"""The golden texts: that they are there, what a difference looks like, and that one model is as they say."""

import sys
import tempfile

import pytest
from click.testing import CliRunner
from golden import __main__ as command
from golden import texts
from golden.texts import DATA, MOST_LINES, Section, find_differences, list_models, load, name_file, save
from golden.worker import FORWARD, LENGTHS, MODES
from repository import ROOT

from benchmarks import zoo

LINES = [f"  t{number} = add(a, b)" for number in range(9)]
GOLDEN = [Section("forward, length 24: computation", "\n".join(LINES)), Section("forward, after 2: stats", "hits: 3")]
MOST_BYTES = 2_000_000


def change(old, new):
    return [Section(each.title, each.text.replace(old, new)) for each in GOLDEN]


def call(monkeypatch, folder, sections, *options):
    monkeypatch.setattr(command, "print_model", lambda model: sections)
    return CliRunner().invoke(command.main, ["gemma", "--folder", str(folder), *options])


def test_parts_that_are_changed_new_gone_or_in_another_order_are_shown():
    lines = find_differences("gemma", GOLDEN, change("t4 = add", "t4 = mul"))
    assert lines[0] == "--- gemma, forward, length 24: computation: golden"
    assert "-  t4 = add(a, b)" in lines and "+  t4 = mul(a, b)" in lines and len(lines) == 9
    assert find_differences("gemma", GOLDEN, list(GOLDEN)) == []
    assert find_differences("gemma", GOLDEN, GOLDEN[::-1]) == ["gemma: the same parts come in another order"]
    lines = find_differences("gemma", GOLDEN, [GOLDEN[0], Section("training: stats", "hits: 4")])
    assert "--- gemma, forward, after 2: stats: golden" in lines and "-hits: 3" in lines
    assert "+++ gemma, training: stats: now" in lines and "+hits: 4" in lines
    assert find_differences("gemma", [*GOLDEN, Section("empty", "")], GOLDEN)[-1] == "-"
    lines = find_differences("gemma", [Section("long", "a\n" * 90)], [Section("long", "b\n" * 90)])
    assert len(lines) == MOST_LINES + 1 and lines[-1].endswith("more lines of this diff")


def test_the_command_fails_on_a_difference_until_it_is_written(tmp_path, monkeypatch):
    assert call(monkeypatch, tmp_path, GOLDEN).exit_code == 1  # there is no file
    save(name_file(tmp_path, "gemma"), GOLDEN)
    assert call(monkeypatch, tmp_path, GOLDEN).exit_code == 0
    changed = change("hits: 3", "hits: 2")
    failed = call(monkeypatch, tmp_path, changed)
    assert failed.exit_code == 1 and "-hits: 3\n+hits: 2\n" in failed.output
    assert call(monkeypatch, tmp_path, changed, "--rewrite").exit_code == 0
    assert call(monkeypatch, tmp_path, changed).exit_code == 0


def test_sections_come_back_from_a_file_that_is_always_the_same(tmp_path):
    sections = [*GOLDEN, Section("empty", ""), Section("breaks", "\na\n\n")]
    paths = [tmp_path / name for name in ("a.txt.xz", "b.txt.xz")]
    for path in paths:
        save(path, sections)
        assert load(path) == sections
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert texts.read_sections(texts.write_sections([])) == []
    with pytest.raises(ValueError, match="'forward'"):
        texts.write_sections([Section("forward", "a\n=== b")])


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("# Constructed by Delete (took 3 milliseconds)", "# Constructed by Delete (took some time)"),
        ("t = residual_tanh_0123abcd(t0)", "t = residual_tanh_89ef4567(t0)"),
        ("t = residual_tanh_0123abcde(t0)", "t = residual_tanh_0123abcde(t0)"),
        ("<function f at 0x7f00aa12>", "<function f at 0x0>"),
        (f"  # {next(filter(None, sys.path))}/litgpt/model.py:7: x", "  # litgpt/model.py:7: x"),
        (f"{tempfile.gettempdir()}/x", "x"),
    ],
)
def test_what_a_machine_or_a_run_changes_is_left_out(text, normal):
    assert texts.normalize(text, {"0123abcd": "89ef4567"}) == normal


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
