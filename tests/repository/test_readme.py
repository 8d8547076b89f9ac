"""The README is short, and what it and the other documents show is what the code does."""

import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections import Counter

import pytest
import torch
from commands import get_output
from documents import (
    DOCUMENTS,
    HAND_WRITTEN,
    README,
    assert_shown,
    list_anchors,
    read_blocks,
    read_hand_written,
    read_links,
    read_session,
)
from repository import DOCS, ROOT, import_path

import fusioncache
from benchmarks.common.counting import use_backend
from fusioncache.transform import executor, shared_region

TRAIN = DOCS / "train.md"
_MOST_KB = {README: 5, ROOT / "CHANGELOG.md": 6, DOCS / "architecture.md": 12}
_MOST_KB_OF_ALL = 110


def test_what_is_written_by_hand_is_short():
    assert not [page for page, most in _MOST_KB.items() if len(page.read_bytes()) > most * 1024]
    assert sum(len(read_hand_written(page).encode()) for page in HAND_WRITTEN) <= _MOST_KB_OF_ALL * 1024


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows what TorchInductor does on a CPU")
@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_two_processes_do_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.delenv("FUSIONCACHE_STORE")
    monkeypatch.setenv("PYTHONPATH", import_path(ROOT))
    (script,) = read_blocks("python")
    (tmp_path / "train.py").write_text(script)
    session = read_session()
    assert [line for line, _ in session] == ["python train.py", "fusioncache stats"] * 2
    for line, shown in session:
        if line == "fusioncache stats":
            assert_shown(shown, get_output("stats"))
        else:
            # A whole process: what it did is on record when it ends.
            subprocess.run([sys.executable, "-W", "ignore", "train.py"], cwd=tmp_path, check=True)


def test_the_code_on_training_runs_from_top_to_bottom(monkeypatch):
    # What is shown compiles with whatever is there. What compiles is none of what the page says, and takes minutes.
    for module in (executor, shared_region):
        monkeypatch.setattr(module, "best_backend", lambda device: "eager")
    use_backend("eager")
    namespace: dict[str, object] = {"__name__": "document"}
    before = fusioncache.default_cache().stats().hits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in read_blocks("python", TRAIN):
            exec(compile(block, str(TRAIN), "exec"), namespace)
    assert fusioncache.default_cache().stats().hits > before


def test_every_way_in_makes_regions_that_are_shared(monkeypatch):
    monkeypatch.setattr(shared_region, "best_backend", lambda device: "eager")
    model, ways, *_ = read_blocks("python", TRAIN)
    namespace: dict[str, object] = {}
    exec(model, namespace)
    shared = 0
    for line in ways.splitlines():
        if "FusionCache()" not in line and "Plugin()" not in line:
            exec(line, namespace)
            continue
        if "if nvFuser makes the regions" in line and not torch.cuda.is_available():
            continue
        torch.compiler.reset()
        before = fusioncache.default_cache().stats().regions
        compiled = eval(line.partition("  #")[0], namespace)
        compiled(torch.randn(4, 64)).sum().backward()
        assert fusioncache.default_cache().stats().regions > before, line
        shared += 1
    assert shared >= 4


@pytest.mark.parametrize("page", [README, DOCS / "install.md"], ids=lambda page: page.name)
def test_install_lines_name_extras_that_there_are(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = ",".join(re.findall(r'pip install "\.\[([\w,]+)\]"', page.read_text())).split(",")
    assert "nvfuser" in named and project["optional-dependencies"].keys() >= set(named)
    assert "replaces" in page.read_text()  # pip takes a newer torch away


def test_developers_are_given_targets_that_make_has():
    (block,) = (block for block in read_blocks() if block.startswith("make "))
    targets = {word for line in block.splitlines() for word in line.partition("#")[0].split()[1:]}
    assert targets == {"check", "test", "bench"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in read_links(page):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert place.exists(), target
        assert not anchor or anchor in list_anchors(place), target


def test_every_page_is_listed_once():
    index = DOCS / "README.md"
    listed = Counter((index.parent / target).resolve() for target in read_links(index))
    pages = {page.resolve() for page in DOCS.glob("*.md")} - {index.resolve()}
    folders = {(DOCS / name / "README.md").resolve() for name in ("commands", "upstream")}
    assert listed == Counter({*pages, README.resolve(), *folders})


def test_what_is_shown_is_compared_in_its_order():
    assert_shown("a 0.123\n...\nc  d", "a 9.876 b\nc\nd")
    assert_shown("compiled 5 in 4.47 s", "compiled 5 in 993 ms")
    for shown, said in (("c\n...\na", "a b c"), ("0.0003", "1e-05"), ("compiled 5 in 4.47 s", "compiled 4 in 4.47 s")):
        with pytest.raises(AssertionError):
            assert_shown(shown, said)
