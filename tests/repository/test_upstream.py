"""The page on shortcuts in Thunder's tracing names each of them under its group."""

import re

import pytest
from repository import ROOT

from benchmarks.detours.names import list_shortcuts
from fusioncache.thunder_adapter.installation import TRACING

_SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(_SECTION.findall((ROOT / "docs" / "upstream.md").read_text()))


def named(section: str) -> set[str]:
    """The names in the first column of its table."""
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("group", TRACING)
def test_the_page_names_what_a_group_replaces_and_nothing_else(group):
    names = {name for of, name, _ in list_shortcuts() if of == group}
    if group == "layers":
        names -= {name for of, name, _ in list_shortcuts() if of == "hooks"}  # which it brings along
    assert names and named(SECTIONS.get(group, "")) == names
