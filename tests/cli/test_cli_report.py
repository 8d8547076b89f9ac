"""The command report: which file is written, and which is not."""

import json

import click
import pytest
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, call, get_error, get_output, save_run, save_two_runs

from fusioncache.cli import report as page


@pytest.fixture(autouse=True)
def _somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_report_of_the_newest_run_in_the_current_directory(monkeypatch, tmp_path):
    save_two_runs(monkeypatch)
    result = call("report")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "wrote fusioncache-report.html\n")
    text = (tmp_path / "fusioncache-report.html").read_text()
    assert OTHER_RUN in text and FIRST_RUN not in text


def test_another_run_and_another_file(monkeypatch, tmp_path):
    save_two_runs(monkeypatch)
    assert call("report", "--run", "aa", "-o", "other.html").exit_code == 0
    assert FIRST_RUN in (tmp_path / "other.html").read_text()


def test_a_report_may_be_written_again_and_nothing_else(monkeypatch, tmp_path):
    save_run(monkeypatch)
    mine = tmp_path / "mine.html"
    mine.write_text("<p>my thesis</p>")
    assert "mine.html is there and is no report: give another -o, or --force" in get_error("report", "-o", "mine.html")
    assert mine.read_text() == "<p>my thesis</p>"
    for options in (["--force"], []):
        assert call("report", "-o", "mine.html", *options).exit_code == 0
    assert FIRST_RUN in mine.read_text()
    mine.write_text("<p>my thesis</p>")
    assert call("report", "-y", "-o", "mine.html").exit_code == 0


def test_a_file_that_cannot_be_written(monkeypatch):
    save_run(monkeypatch)
    assert "cannot be written (No such file" in get_error("report", "-o", "none/report.html")


def test_it_is_opened_in_the_browser(monkeypatch, tmp_path):
    save_run(monkeypatch)
    opened = []
    monkeypatch.setattr(click, "launch", opened.append)
    assert call("report", "-o", "a b.html", "--open").exit_code == 0
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]


def test_json_is_what_a_report_is_made_of(monkeypatch, tmp_path):
    save_run(monkeypatch)
    monkeypatch.setattr(page, "render_report", None)
    data = json.loads(get_output("report", "--json"))
    assert not (tmp_path / "fusioncache-report.html").exists()
    assert (data["schema"], data["run"]["id"], data["run"]["hits"]) == (2, FIRST_RUN, 3)
    assert [(template["digest"], template["regions_at"]) for template in data["templates"]] == [
        (CHAIN.key.digest, [1, 2, 3, 5]),
        (CAST.key.digest, [0]),
    ]
    assert data["regions"][4] == {
        **{"template": None, "model": "Blocks", "trace": "forward", "trace_number": 0, "position": 16},
        **{"name": "nvFusion4", "outcome": "bypass", "reason": "unknown op", "arities": [], "plan": None},
        **{"module": "blocks.4", "layer": 4},
        "lines": [
            {"file": "/home/me/model.py", "line": 31, "library": False},
            {"file": "/lib/torch/nn.py", "line": 7, "library": True},
        ],
        "ops": 3,
    }
    assert data["misses"][0]["nearest"] == CAST.key.digest
    assert data["misses"][0]["changes"][0]["ingredient"] == "ops"
    assert data["environment"] == {"device": ["cuda"], "options": ["nvfuser=0.2.36"]}
