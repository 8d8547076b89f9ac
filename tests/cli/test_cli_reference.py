"""The pages of the reference are what the commands say of themselves."""

import pytest
from repository import DOCS

from docs.commands_page import make_pages, write_pages
from fusioncache.cli.main import COMMANDS

_FOLDER = DOCS / "commands"
_PAGE = """\
# fusioncache dir

```
fusioncache dir [OPTIONS]
```

Print the directory that the record and the store are in.

It need not exist yet. --json adds the paths of the record and the store, and the remote store that \
FUSIONCACHE_REMOTE names, from which missing entries come.

## Examples

```
fusioncache dir
du -sh "$(fusioncache dir)"
fusioncache dir --json
```

## Options

| option | meaning |
| --- | --- |
| `--json` | Print JSON: exact numbers, seconds and bytes. |
| `--help` | Show this message and exit. |
"""


@pytest.mark.parametrize("name", ["README.md", *(f"{name}.md" for name in COMMANDS)])
def test_the_committed_page_is_up_to_date(name):
    path = _FOLDER / name
    assert path.is_file(), "run python docs/commands_page.py"
    assert path.read_text() == make_pages()[name], "run python docs/commands_page.py"


def test_there_is_no_page_of_a_command_that_is_gone():
    assert {path.name for path in _FOLDER.iterdir()} == set(make_pages())


def test_a_page_to_the_letter():
    assert make_pages()["dir.md"] == _PAGE


def test_the_index_links_every_command():
    assert all(f"[{name}]({name}.md)" in make_pages()["README.md"] for name in COMMANDS)


def test_pages_are_written_and_old_ones_go(tmp_path):
    (tmp_path / "gone.md").write_text("gone")
    (tmp_path / "other.txt").write_text("stays")
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*make_pages(), "other.txt"}
