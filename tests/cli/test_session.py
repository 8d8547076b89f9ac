"""A slow start looked into: a Llama of four layers, before and after one of them was changed by one constant."""

import io
import json
import re
from contextlib import redirect_stderr

import pytest
from changed_layer import CHANGED_LAYER, train_llama
from commands import get_output
from documents import assert_shown, read_session
from report_records import Page, read_newest
from repository import DOCS


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The record of two runs, as it was and as it was changed, and what the second one explained as it went."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        directory = tmp_path_factory.mktemp("session")
        patch.setenv("FUSIONCACHE_DIR", str(directory))
        train_llama(None)
        train_llama(CHANGED_LAYER, explain=True)
    return directory, re.split(r"^(?=fusioncache: )", said.getvalue(), flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _record(session, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(session[0]))


def _documented(command: str) -> str:
    (shown,) = (output for line, output in read_session(DOCS / "why-slow.md") if line.startswith(command))
    return shown


def test_the_page_shows_what_is_said(session):
    (odd,) = (new["digest"] for new in json.loads(get_output("diff", "--json"))["new_templates"])
    assert_shown(_documented("fusioncache diff"), get_output("diff"))
    assert_shown(_documented("fusioncache explain "), get_output("explain", odd))
    assert_shown(_documented("FUSIONCACHE_EXPLAIN=1 "), "\n".join(session[1]))
    (region,) = json.loads(get_output("show", odd, "--regions", "--json"))["seen_in"]
    assert (region["module"], region["layer"]) == (f"transformer.h.{CHANGED_LAYER}.norm_1", CHANGED_LAYER)


def test_the_map_shows_the_odd_layer():
    cells = [line for line in Page.of(read_newest()).html.split("<a ") if "cell" in line.partition(">")[0]]
    odd = [cell for cell in cells if f'aria-label="transformer.h.{CHANGED_LAYER}, ' in cell and "cell once" in cell]
    assert len(odd) == 1 and "norm_1, forward" in odd[0]
    # Its neighbour is one of many.
    assert not [cell for cell in cells if 'aria-label="transformer.h.1, ' in cell and "cell once" in cell]
