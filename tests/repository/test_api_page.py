"""The page of public names is what the code says."""

import re

import pytest

import fusioncache

pytest.importorskip("griffe")  # the page is made where the package is developed

from docs import api_page


def test_the_committed_page_is_up_to_date():
    assert api_page.PAGE.read_text() == api_page.text(), "run python docs/api_page.py"


def test_every_public_name_has_a_section():
    page = api_page.PAGE.read_text()
    assert [name for name in re.findall(r"^## (\S+)$", page, re.MULTILINE) if "." not in name] == fusioncache.__all__
    assert "### FusionCache.stats\n" in page and "- `backend`: " in page and "- `ValueError`: " in page
