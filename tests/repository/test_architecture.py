"""The page on architecture names files that are there, and a spine that is short."""

import re

from repository import DOCS, PACKAGE, ROOT

PAGE = (DOCS / "architecture.md").read_text()
_MOST_FILES, _MOST_LINES = 12, 3500


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", PAGE))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not ((PACKAGE / name).exists() or (ROOT / name).exists())]


def test_the_spine_is_read_in_an_hour():
    spine = PAGE.partition("## The spine")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", spine, re.MULTILINE)
    assert 0 < len(files) <= _MOST_FILES
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in files) <= _MOST_LINES
