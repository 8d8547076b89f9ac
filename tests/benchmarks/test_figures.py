"""The documents say what the committed results say, which name no path and no host, and none of which is unused."""

import json
import re

import pytest
from repository import DOCS, ROOT

from benchmarks.figures import make, markdown
from benchmarks.figures.catalogue import CATALOGUE

ENTRIES = [entry for entries in CATALOGUE.values() for entry in entries]
COMMANDS = [entry.command for entry in ENTRIES if not entry.command.startswith("python ")]
RESULTS = make.list_results()
_PATH = re.compile(r"(?<![\w.])(/(home|root|tmp|usr|var|work|opt|mnt|data|workspace|Users)/|[A-Z]:\\)")


def test_the_documents_show_the_committed_results():
    texts = {path: path.read_text() for path in make.DOCUMENTS}
    assert markdown.fill(texts, make.make_figures()) == texts, "run make figures"


def test_the_table_has_all_benchmarks():
    modules = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]
    modules += (ROOT / "benchmarks").glob("*/__main__.py")
    names = {path.stem if path.stem != "__main__" else path.parent.name for path in modules}
    assert names == {command.partition(" ")[0] for command in COMMANDS}


def test_each_result_names_its_environment_and_no_path_and_is_shown_or_linked():
    for path in RESULTS:
        text = path.read_text()
        assert not _PATH.findall(text), path
        assert {"gpu", "versions", "commit", "options"} <= json.loads(text)["environment"].keys(), path
    texts = [file.read_text() for file in (ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("fusioncache/**/*.py"))]
    shown = set(re.findall(r"results/(\w+/[\w-]+)\.json", " ".join(texts)))
    shown |= {f"h200/{name}" for name in re.findall(r"results/([\w-]+)\.json", " ".join(texts))}
    code = (ROOT / "benchmarks" / "figures" / "make.py").read_text()
    unused = [
        path
        for path in RESULTS
        if f"{path.parent.name}/{path.stem}" not in shown
        and not any(word in code for word in (f'"{path.stem}"', f'"{path.stem.removeprefix("prices-")}"'))
    ]
    assert not unused


def test_no_block_and_no_figure_may_be_missing():
    texts = {"one": "a\n<!-- figure: x -->\nold\n<!-- end of figure -->\nb\n"}
    for figures in ({}, {"x": "", "y": ""}):
        with pytest.raises(ValueError, match=r"no figure or no place for (x|y)"):
            markdown.fill(texts, figures)
