"""Where a name is defined: found in the files that Python would import, without importing any."""

import sys

import pytest

from fusioncache.cli.listings import find_definition

SOURCE = """import os

EPS: float = 1e-5
a = b = 3


class Block:
    scale = 2.0

    @property
    def width(self):
        def inner():
            return 1
        return inner

raise RuntimeError("nobody may run this")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "package" / "part").mkdir(parents=True)
    (tmp_path / "package" / "part" / "mine.py").write_text(SOURCE)
    (tmp_path / "package" / "__init__.py").write_text(SOURCE)
    (tmp_path / "odd.py").write_text("def (")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "number", "line"),
    [
        ("package.part.mine.EPS", 3, "EPS: float = 1e-5"),
        ("package.part.mine.b", 4, "a = b = 3"),
        ("package.part.mine:Block", 7, "class Block:"),
        ("package.part.mine:Block.scale", 8, "scale = 2.0"),
        ("package.part.mine:Block.width", 11, "def width(self):"),
        ("package.part.mine:Block.width.inner", 12, "def inner():"),
    ],
)
def test_what_a_file_defines(folder, name, number, line):
    assert find_definition(name) == f"{folder / 'package' / 'part' / 'mine.py'}:{number}: {line}"
    assert "package" not in sys.modules


def test_a_package_is_its_init_file(folder):
    assert find_definition("package.Block") == f"{folder / 'package' / '__init__.py'}:7: class Block:"


@pytest.mark.parametrize(
    "name",
    ["package.part.mine.gone", "package.part.mine.os", "gone.f", "f", "", "odd.f", "a b", "../package.EPS", "1.2"],
)
def test_what_nobody_defines(name):
    assert find_definition(name) is None
