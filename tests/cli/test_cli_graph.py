"""The command graph: what goes where."""

import os

import pytest
from commands import call, get_error, get_output, save_run


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    save_run(monkeypatch)
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(("name", "start"), [("x.svg", "<svg "), ("x.dot", "digraph ")])
def test_a_file(tmp_path, name, start):
    path = tmp_path / name
    assert get_output("graph", "residual", "-o", "-") == get_output("graph", "residual")
    result = call("graph", "residual", "-o", str(path))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {path}\n")
    assert path.read_text().startswith(start)


def _graphviz(tmp_path, monkeypatch, script: str) -> None:
    program = tmp_path / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(program, 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_graphviz_draws_images(tmp_path, monkeypatch):
    _graphviz(tmp_path, monkeypatch, 'echo "$@"; /bin/cat')
    path = tmp_path / "x.PNG"
    assert call("graph", "residual", "-o", str(path)).stderr == f"wrote {path}\n"
    assert path.read_text() == "-Tpng\n" + get_output("graph", "residual")


@pytest.mark.parametrize(
    ("script", "why"), [("exit 3", "exit status 3.)"), ("echo no memory >&2; exit 1", "(no memory)")]
)
def test_an_image_that_graphviz_cannot_draw_is_not_written(tmp_path, monkeypatch, script, why):
    _graphviz(tmp_path, monkeypatch, script)
    path = tmp_path / "x.png"
    error = get_error("graph", "residual", "-o", str(path))
    assert f"{path} was not written: graphviz's program dot failed (" in error and f"{why}: install" in error
    assert not path.exists()
