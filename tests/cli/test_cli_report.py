"""The command report: which file is written, and which is not."""

import click
import pytest
from commands import FIRST_RUN, OTHER_RUN, call, get_error, save_run, save_two_runs


@pytest.fixture(autouse=True)
def _somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_report_of_the_newest_run_in_the_current_directory(monkeypatch, tmp_path):
    save_two_runs(monkeypatch)
    result = call("report")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "wrote fusioncache-report.html\n")
    text = (tmp_path / "fusioncache-report.html").read_text()
    assert OTHER_RUN in text and FIRST_RUN not in text


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


def test_it_is_opened_in_the_browser(monkeypatch, tmp_path):
    save_run(monkeypatch)
    opened = []
    monkeypatch.setattr(click, "launch", opened.append)
    assert call("report", "-o", "a b.html", "--open").exit_code == 0
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]
