"""README, other documents and examples show what the code does, and are short."""

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import forked_processes as forks
import pytest
import torch
from changed_layer import CHANGED_LAYER, train_llama
from commands import call, get_output
from documents import (
    DOCUMENTS,
    HAND_WRITTEN,
    assert_shown,
    list_anchors,
    read_blocks,
    read_hand_written,
    read_links,
    read_session,
)
from report_records import Page, read_newest
from repository import DOCS, PACKAGE, README, ROOT, import_path

import fusioncache
from benchmarks.common.counting import use_backend
from benchmarks.figures import make, markdown
from benchmarks.figures.catalogue import CATALOGUE
from docs.commands_page import make_pages, write_pages
from fusioncache.cli.main import COMMANDS
from fusioncache.thunder_adapter.installation import list_patches
from fusioncache.transform import executor, shared_region

TRAIN = DOCS / "train.md"
_MOST_KB = {README: 5, ROOT / "CHANGELOG.md": 6, DOCS / "architecture.md": 12}
_MOST_KB_OF_ALL = 110
_NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


def test_what_is_written_by_hand_is_short():
    assert not [page for page, most in _MOST_KB.items() if len(page.read_bytes()) > most * 1024]
    texts = [read_hand_written(page) for page in HAND_WRITTEN]
    assert sum(len(text.encode()) for text in texts) <= _MOST_KB_OF_ALL * 1024


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README shows what TorchInductor does on a CPU")
@_NEEDS_COMPILER
def test_two_processes_do_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.delenv("FUSIONCACHE_STORE")
    monkeypatch.setenv("PYTHONPATH", import_path(ROOT))
    (script,) = read_blocks("python")
    (tmp_path / "train.py").write_text(script)
    shown_session = read_session()
    assert [line for line, _ in shown_session] == ["python train.py", "fusioncache stats"] * 2
    for line, shown in shown_session:
        if line == "fusioncache stats":
            assert_shown(shown, get_output("stats"))
        else:
            # A whole process, whose record is complete when it ends.
            subprocess.run([sys.executable, "-W", "ignore", "train.py"], cwd=tmp_path, check=True)


def test_the_code_on_training_runs_from_top_to_bottom(monkeypatch):
    # The page's code compiles with the best backend, which takes minutes and does not affect what the page shows.
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
    assert "replaces" in page.read_text()  # pip replaces a newer torch


def test_links_lead_somewhere():
    for page in DOCUMENTS:
        for target in read_links(page):
            name, _, anchor = target.partition("#")
            place = page.parent / name if name else page
            assert place.exists() and (not anchor or anchor in list_anchors(place)), (page, target)


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
    pytest.importorskip("griffe")  # only development environments make the page
    from docs import api_page

    page = api_page.PAGE.read_text()
    assert page == api_page.text(), "run python docs/api_page.py"
    assert [name for name in re.findall(r"^## (\S+)$", page, re.MULTILINE) if "." not in name] == fusioncache.__all__
    assert "### FusionCache.stats\n" in page and "- `backend`: " in page and "- `ValueError`: " in page


EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(monkeypatch):
    """Returns a function that imports an example by its name, as a program in its folder does."""

    def load(name):
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return load


def test_a_small_llama_learns(example, capsys):
    pytest.importorskip("litgpt")
    stats = example("train_llama").main(["--layers", "2", "--steps", "2", "--backend", "eager"])
    assert stats.hits > 0 and not stats.bypasses
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_the_changed_layer_has_one_template_of_its_own(example, capsys):
    example("explain_a_miss").main()
    said = capsys.readouterr()
    assert said.out == "as it was: 12 regions, 5 new templates\nas it is:  12 regions, 1 new templates\n"
    assert ": 0.0003 here, 1e-05 there." in said.err
    assert re.search(r"explain_a_miss\.py:\d+: normed = x \* torch\.rsqrt", said.err)


@_NEEDS_COMPILER
def test_the_second_process_compiles_nothing(example, monkeypatch, capsys):
    monkeypatch.delenv("FUSIONCACHE_STORE")

    def run(command, env, check):
        python, file, *arguments = command
        assert (python, file, check) == (sys.executable, EXAMPLES / "second_process.py", True)
        print(forks.read_output("examples.second_process", *arguments, FUSIONCACHE_DIR=env["FUSIONCACHE_DIR"]))

    second_process = example("second_process")
    monkeypatch.setattr(second_process, "subprocess", SimpleNamespace(run=run))
    second_process.main()
    first, second = re.findall(r"(\d+) regions, (\d+) compiles, (\d+) loads", capsys.readouterr().out)
    assert first == ("8", "4", "0") and second == ("8", "0", "4")


def test_the_notebook_is_committed_without_outputs_and_runs_from_top_to_bottom(capfd):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.system = shell.system_raw  # the other way forks a process that has threads
    shown = []
    for cell in json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and not cell["execution_count"]
            outcome = shell.run_cell("".join(cell["source"]))
            outcome.raise_error()
            assert not shell.user_ns.get("_exit_code")
            shown.append(shell.display_formatter.format(outcome.result)[0].get("text/html"))
    counts, templates, *_ = filter(None, shown)
    assert "<tr><th>regions</th><td>8</td></tr>" in counts
    assert "residual_sum_" in templates
    said = capfd.readouterr()
    assert "0.0003 here, 1e-05 there" in said.err and "residual_sum_" in said.out


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Returns the directory with the record of two runs, and explanations of the second, whose model is changed."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        directory = tmp_path_factory.mktemp("session")
        patch.setenv("FUSIONCACHE_DIR", str(directory))
        train_llama(None)
        train_llama(CHANGED_LAYER, explain=True)
    return directory, re.split(r"^(?=fusioncache: )", said.getvalue(), flags=re.MULTILINE)


def test_the_page_on_slow_starts_and_the_map_show_the_changed_layer(session, monkeypatch):
    def shown(command: str) -> str:
        (output,) = (output for line, output in read_session(DOCS / "why-slow.md") if line.startswith(command))
        return output

    monkeypatch.setenv("FUSIONCACHE_DIR", str(session[0]))
    (odd,) = (new["digest"] for new in json.loads(get_output("diff", "--json"))["new_templates"])
    assert_shown(shown("fusioncache diff"), get_output("diff"))
    assert_shown(shown("fusioncache explain "), get_output("explain", odd))
    assert_shown(shown("FUSIONCACHE_EXPLAIN=1 "), "\n".join(session[1]))
    (region,) = json.loads(get_output("show", odd, "--regions", "--json"))["seen_in"]
    assert (region["module"], region["layer"]) == (f"transformer.h.{CHANGED_LAYER}.norm_1", CHANGED_LAYER)
    cells = [line for line in Page.of(read_newest()).html.split("<a ") if "cell" in line.partition(">")[0]]
    odd = [cell for cell in cells if f'aria-label="transformer.h.{CHANGED_LAYER}, ' in cell and "cell once" in cell]
    assert len(odd) == 1 and "norm_1, forward" in odd[0]
    # Its neighbour is one of many.
    assert not [cell for cell in cells if 'aria-label="transformer.h.1, ' in cell and "cell once" in cell]


def run_recipe(
    lines: list[str], home: Path, variables: dict[str, str], places: dict[str, str], patch: pytest.MonkeyPatch
) -> list[str]:
    """Returns what the lines print, with ``variables`` set before, and with other folders in their ``places``."""
    home.mkdir(exist_ok=True)
    known, exported, said = {"PWD": str(home), "TMPDIR": str(home), **variables}, dict[str, str](), []
    for name in ("FUSIONCACHE_STORE", "FUSIONCACHE_TRUST", "FUSIONCACHE_REMOTE", "FUSIONCACHE_SIGNING_KEY"):
        patch.delenv(name, raising=False)
    for line in lines:
        for place, there in places.items():
            line = line.replace(place, there)
        line = re.sub(r"\$(\w+)", lambda name: shlex.quote(known[name[1]]).strip("'"), line)
        kind, _, rest = line.partition(" ")
        words = shlex.split(rest if kind == "RUN" else line, comments=True)
        if kind in ("export", "ENV"):
            name, _, exported[name] = rest.partition("=")
            patch.setenv(name, exported[name])
        elif words[0] == "fusioncache":
            done = call(*words[1:])
            assert done.exit_code == 0, done.output
            said.append(done.output)
        else:
            assert words == ["python", "train.py"]
            said.append(forks.read_output("recipe_model", **exported))
    return said


@_NEEDS_COMPILER
def test_ci_fills_a_bucket_that_a_job_with_its_key_reads_and_an_image_ships_a_pack(tmp_path, monkeypatch):
    ci, job = read_blocks("bash", DOCS / "sharing.md")
    (image,) = read_blocks("dockerfile", DOCS / "sharing.md")
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "keys"))
    public = call("keys", "new", "ci").stdout.strip()
    variables = {"SECRET": (tmp_path / "keys" / "keys" / "own").read_text().strip(), "CI_KEY": public}
    places = {"s3://bucket/fusioncache": str(tmp_path / "bucket"), "/tmp/llama.fcpack": str(tmp_path / "pack")}
    places["/opt/fusioncache"] = str(tmp_path / "image" / "cache")

    made, pushed = run_recipe(ci.splitlines(), tmp_path / "ci", variables, places, monkeypatch)
    compiled, programs, *rest, total = made.splitlines()[-1].split()
    assert (compiled, programs, rest) == ("1", "1", ["{}", "{}"])
    assert pushed.startswith("pushed ")
    assert call("pack", "--model", "wave", "-o", str(tmp_path / "pack")).exit_code == 0

    (loaded,) = run_recipe(job.splitlines(), tmp_path / "job", variables, places, monkeypatch)
    assert re.search(rf"^0 0 \{{'FUSIONCACHE_TRUST \({public[:16]}\)': \d+\}} \{{\}} {total}$", loaded, re.MULTILINE)

    lines = [line for line in image.splitlines() if not line.startswith("COPY ")]
    brought, ran = run_recipe([*lines, "python train.py"], tmp_path / "image", variables, places, monkeypatch)
    assert brought.startswith("brought ")
    assert ran.splitlines()[-1] == f"0 0 {{}} {{}} {total}"

    # The same job with a key that it does not trust.
    others = {**variables, "CI_KEY": "0" * 64}
    (said,) = run_recipe(job.splitlines(), tmp_path / "other", others, places, monkeypatch)
    assert re.search(r"^1 1 \{\} \{'signed by a key that is not trusted': \d+\}", said, re.MULTILINE)


def test_the_pages_of_commands_are_up_to_date_and_those_of_commands_that_are_gone_are_removed(tmp_path):
    pages = make_pages()
    assert pages.keys() == {"README.md", *(f"{name}.md" for name in COMMANDS)}
    assert {path.name: path.read_text() for path in (DOCS / "commands").iterdir()} == pages, (
        "run python docs/commands_page.py"
    )
    for name in ("gone.md", "other.txt"):
        (tmp_path / name).touch()
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*pages, "other.txt"}


RESULTS = make.list_results()
_PATH = re.compile(r"(?<![\w.])(/(home|root|tmp|usr|var|work|opt|mnt|data|workspace|Users)/|[A-Z]:\\)")


def test_the_documents_show_the_committed_results():
    texts = {path: path.read_text() for path in make.DOCUMENTS}
    assert markdown.fill(texts, make.make_figures()) == texts, "run make figures"


def test_the_table_has_all_benchmarks():
    modules = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]
    modules += (ROOT / "benchmarks").glob("*/__main__.py")
    names = {path.stem if path.stem != "__main__" else path.parent.name for path in modules}
    shown = {entry.command.partition(" ")[0] for entries in CATALOGUE.values() for entry in entries}
    assert names == shown - {"python"}


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
