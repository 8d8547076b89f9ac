"""The README is short, and what it and the other documents show is what the code does."""

import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections import Counter

import documents
import pytest
import torch
from commands import get_output
from repository import DOCS, PACKAGE, README, ROOT, import_path

import fusioncache
from benchmarks.common.counting import use_backend
from fusioncache.thunder_adapter.installation import list_patches
from fusioncache.transform import executor, shared_region

TRAIN = DOCS / "train.md"
_MOST_KB = {README: 5, ROOT / "CHANGELOG.md": 6, DOCS / "architecture.md": 12}
_MOST_KB_OF_ALL = 110


def test_what_is_written_by_hand_is_short():
    assert not [page for page, most in _MOST_KB.items() if len(page.read_bytes()) > most * 1024]
    assert (
        sum(len(documents.read_hand_written(page).encode()) for page in documents.HAND_WRITTEN)
        <= _MOST_KB_OF_ALL * 1024
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows what TorchInductor does on a CPU")
@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_two_processes_do_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.delenv("FUSIONCACHE_STORE")
    monkeypatch.setenv("PYTHONPATH", import_path(ROOT))
    (script,) = documents.read_blocks("python")
    (tmp_path / "train.py").write_text(script)
    session = documents.read_session()
    assert [line for line, _ in session] == ["python train.py", "fusioncache stats"] * 2
    for line, shown in session:
        if line == "fusioncache stats":
            documents.assert_shown(shown, get_output("stats"))
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
        for block in documents.read_blocks("python", TRAIN):
            exec(compile(block, str(TRAIN), "exec"), namespace)
    assert fusioncache.default_cache().stats().hits > before


def test_every_way_in_makes_regions_that_are_shared(monkeypatch):
    monkeypatch.setattr(shared_region, "best_backend", lambda device: "eager")
    model, ways, *_ = documents.read_blocks("python", TRAIN)
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


def test_links_lead_somewhere():
    for page in documents.DOCUMENTS:
        for target in documents.read_links(page):
            name, _, anchor = target.partition("#")
            place = page.parent / name if name else page
            assert place.exists() and (not anchor or anchor in documents.list_anchors(place)), (page, target)


def test_every_page_is_listed_once():
    index = DOCS / "README.md"
    listed = Counter((index.parent / target).resolve() for target in documents.read_links(index))
    pages = {page.resolve() for page in DOCS.glob("*.md")} - {index.resolve()}
    folders = {(DOCS / name / "README.md").resolve() for name in ("commands", "upstream")}
    assert listed == Counter({*pages, README.resolve(), *folders})


def test_what_is_shown_is_compared_in_its_order():
    documents.assert_shown("a 0.123\n...\nc  d", "a 9.876 b\nc\nd")
    documents.assert_shown("compiled 5 in 4.47 s", "compiled 5 in 993 ms")
    for shown, said in (("c\n...\na", "a b c"), ("0.0003", "1e-05"), ("compiled 5 in 4.47 s", "compiled 4 in 4.47 s")):
        with pytest.raises(AssertionError):
            documents.assert_shown(shown, said)


def test_the_architecture_names_files_that_are_there_and_its_spine_is_read_in_an_hour():
    page = (DOCS / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", page))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not ((PACKAGE / name).exists() or (ROOT / name).exists())]
    spine = page.partition("## The spine")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", spine, re.MULTILINE)
    assert 0 < len(files) <= 12
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in files) <= 3500


def test_the_page_on_changes_of_thunder_has_each_patch_once():
    page = (DOCS / "upstream.md").read_text()
    table = page.partition("| patches | change in Thunder |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+) \| \S", table, re.MULTILINE)
    named = Counter(name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    assert named == Counter(list(list_patches()))


def test_the_page_of_public_names_is_up_to_date_and_has_a_section_for_each():
    pytest.importorskip("griffe")  # the page is made where the package is developed
    from docs import api_page

    page = api_page.PAGE.read_text()
    assert page == api_page.text(), "run python docs/api_page.py"
    assert [name for name in re.findall(r"^## (\S+)$", page, re.MULTILINE) if "." not in name] == fusioncache.__all__
    assert "### FusionCache.stats\n" in page and "- `backend`: " in page and "- `ValueError`: " in page
