"""A model through thunderfx, as the commands and the report show it: by the user's class, with the whole first step."""

import inspect
from pathlib import Path

import pytest
import torch
from behind_dynamo import OwnNet
from commands import call, get_output

import fusioncache

LENGTHS = (2, 3)


_FIRST = OwnNet.forward.__code__.co_firstlineno
_FILE = inspect.getfile(OwnNet)
LINES = {f"{_FILE}:{_FIRST + 1}", f"{_FILE}:{_FIRST + 3}"}
"""Those of which Thunder makes regions."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where two runs left their record and their programs; the second one had another input."""
    from thunder.dynamo import thunderfx

    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("dynamo")
        patch.setenv("FUSIONCACHE_DIR", str(path))
        patch.setenv("FUSIONCACHE_STORE", "1")
        for length in LENGTHS:
            torch._dynamo.reset()
            transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", jobs=0)
            model = OwnNet()
            compiled = thunderfx(model, executors=fusioncache.executors(), transforms=[transform], dynamic=False)
            compiled(torch.ones(length, 4)).sum().backward()
            transform.cache.write_record()
        yield path


@pytest.fixture(autouse=True)
def _directory(directory, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(directory))


def _list_programs() -> list[list[str]]:
    """Returns the first words of each line of the list of programs: the ID and the class."""
    return [line.split()[:2] for line in get_output("ls", "--programs").splitlines()[1:]]


def _shown() -> dict[str, str]:
    programs = [id_ for id_, _ in _list_programs()]
    calls = {
        "ls --programs": ("ls", "--programs"),
        "ls": ("ls",),
        "show": ("show", programs[0]),
        "explain": ("explain", programs[0]),
        "diff": ("diff",),
        "diff of programs": ("diff", *programs[:2]),
        "stats": ("stats",),
        "stats -v": ("stats", "-v"),
        "stats --runs": ("stats", "--runs"),
        "explain the run": ("explain",),
    }
    shown = {name: call(*words).stdout for name, words in calls.items()}
    assert call("report", "-o", "dynamo.html", "--force").exit_code == 0
    return {**shown, "report": Path("dynamo.html").read_text(encoding="utf-8")}


@pytest.fixture(scope="module")
def shown(directory, tmp_path_factory):
    """What each command prints, by its words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIONCACHE_DIR", str(directory))
        patch.delenv("COLUMNS", raising=False)
        patch.chdir(tmp_path_factory.mktemp("shown"))
        return _shown()


def test_the_users_class_is_named_and_the_class_of_graphs_is_not(shown):
    assert not {name for name, text in shown.items() if "GraphModule" in text}
    named = {name for name, text in shown.items() if "OwnNet" in text}
    # A list of templates has names of operations, and a comparison of runs has their names.
    assert named == shown.keys() - {"ls", "explain the run"}
    assert {name for _, name in _list_programs()} == {"OwnNet"}
    assert "OwnNet (part 1 of 2)" in shown["ls --programs"] and "OwnNet (from line " in shown["ls --programs"]


def test_the_title_of_the_report_has_the_class_once(shown):
    assert "<h1>OwnNet</h1>" in shown["report"]


def test_regions_come_from_the_users_lines(shown):
    assert "eval_with_key" not in shown["explain the run"] + shown["report"]
    assert all(line in shown["explain the run"] for line in LINES)


def test_the_whole_first_step_is_accounted_for(shown):
    section = shown["report"].partition('<section id="time"')[2].partition("</section>")[0]
    for phase in ("Dynamo", "splitting", "other compilers", "tracing", "canonicalizing", "rest of the call"):
        assert f"</span>{phase}</th>" in section
    owners = section.partition('<p id="owners">In all: ')[2].partition("</p>")[0]
    assert [part.split(" ")[0] for part in owners.split(", ")] == [
        "Dynamo",
        "Thunder",
        "compilers",
        "fusioncache",
        "the",
    ]
    verbose = [line.split()[0] for line in shown["stats -v"].partition("seconds in all phases")[2].splitlines()[1:]]
    assert {"Dynamo", "splitting", "other", "rest"} <= set(verbose)


def test_what_was_not_given_to_thunder_is_counted_with_the_reason(shown):
    why = "sinc only has an automatic torch fallback in thunder"
    assert f"Dynamo 1 operation not given to Thunder: {why} (1)" in " ".join(shown["stats"].split())
    assert "bypassed" not in shown["stats"]
    assert f'<tr><th scope="row">{why}</th><td class="n">1</td></tr>' in shown["report"]
    assert "No region was bypassed." in shown["report"]
    assert '1 operation was <a href="#not-given">not given to Thunder</a>: ' in shown["report"]
