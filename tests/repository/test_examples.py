"""The examples run as they stand, and show what they say."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import forked_processes as forks
import pytest
from repository import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name, as a program does that is in that folder."""

    def load(name):
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return load


def test_a_small_llama_learns(example, capsys):
    pytest.importorskip("litgpt")
    stats = example("train_llama").main(["--layers", "2", "--steps", "2", "--backend", "eager"])
    assert stats.hits > 0 and not stats.bypasses
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_the_changed_layer_has_one_template_of_its_own(example, capsys):
    example("explain_a_miss").main()
    said = capsys.readouterr()
    assert said.out == "as it was: 12 regions, 5 new templates\nas it is:  12 regions, 1 new templates\n"
    assert ": 0.0003 here, 1e-05 there." in said.err
    assert re.search(r"explain_a_miss\.py:\d+: normed = x \* torch\.rsqrt", said.err)


@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_the_second_process_compiles_nothing(example, monkeypatch, capsys):
    monkeypatch.delenv("FUSIONCACHE_STORE")

    def run(command, env, check):
        python, file, *arguments = command
        assert (python, file, check) == (sys.executable, EXAMPLES / "second_process.py", True)
        print(forks.ask("examples.second_process", *arguments, FUSIONCACHE_DIR=env["FUSIONCACHE_DIR"]))

    second_process = example("second_process")
    monkeypatch.setattr(second_process, "subprocess", SimpleNamespace(run=run))
    second_process.main()
    first, second = re.findall(r"(\d+) regions, (\d+) compiles, (\d+) loads", capsys.readouterr().out)
    assert first == ("8", "4", "0") and second == ("8", "0", "4")


def test_the_notebook_is_committed_without_outputs_and_runs_from_top_to_bottom(capfd):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.system = shell.system_raw  # the other way forks a process that has threads
    shown = []
    for cell in json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and not cell["execution_count"]
            outcome = shell.run_cell("".join(cell["source"]))
            outcome.raise_error()
            assert not shell.user_ns.get("_exit_code")
            shown.append(shell.display_formatter.format(outcome.result)[0].get("text/html"))
    counts, templates, *_ = filter(None, shown)
    assert "<tr><th>regions</th><td>8</td></tr>" in counts
    assert "residual_sum_" in templates
    said = capfd.readouterr()
    assert "0.0003 here, 1e-05 there" in said.err and "residual_sum_" in said.out
