"""The page on patches of Thunder says of each capability which change in Thunder would replace it."""

import re
from collections import Counter

from repository import ROOT

from fusioncache.thunder_adapter.installation import list_patches

PAGE = (ROOT / "docs" / "upstream.md").read_text()


def test_the_page_has_each_capability_of_the_table_once():
    table = PAGE.partition("| patches | change in Thunder |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+) \| \S", table, re.MULTILINE)
    named = Counter(name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    assert named == Counter(list(list_patches()))
