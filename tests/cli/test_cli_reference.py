"""The pages of the reference are what the commands say of themselves."""

import pytest
from repository import DOCS

from docs.commands_page import make_pages, write_pages
from fusioncache.cli.main import COMMANDS

_FOLDER = DOCS / "commands"


@pytest.mark.parametrize("name", ["README.md", *(f"{name}.md" for name in COMMANDS)])
def test_the_committed_page_is_up_to_date(name):
    path = _FOLDER / name
    assert path.is_file(), "run python docs/commands_page.py"
    assert path.read_text() == make_pages()[name], "run python docs/commands_page.py"


def test_pages_of_commands_that_are_gone_are_removed(tmp_path):
    for name in ("gone.md", "other.txt"):
        (tmp_path / name).touch()
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*make_pages(), "other.txt"}
    assert {path.name for path in _FOLDER.iterdir()} == set(make_pages())
