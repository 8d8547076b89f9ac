"""The page on architecture names files that are there, and all ingredients of keys."""

import re

from repository import DOCS, PACKAGE, ROOT

from fusioncache.ir.keys import INGREDIENTS

PAGE = (DOCS / "architecture.md").read_text()


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", PAGE))
    assert len(named) > 40
    assert not [name for name in sorted(named) if not ((PACKAGE / name).exists() or (ROOT / name).exists())]


def test_every_ingredient_has_its_row():
    rows = [f"| `{kind.name}` | {kind.level.name.lower()} | {kind.meaning} |" for kind in INGREDIENTS.values()]
    assert "\n".join(rows) in PAGE
