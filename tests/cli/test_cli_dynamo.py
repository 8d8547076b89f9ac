"""A model through thunderfx, as the commands and the report show it: by the user's class, with the whole first step."""

import inspect
from pathlib import Path

import pytest
import torch
from behind_dynamo import OwnNet
from commands import call, get_output

import fusioncache

_FIRST = OwnNet.forward.__code__.co_firstlineno
_LINES = {f"{inspect.getfile(OwnNet)}:{_FIRST + offset}" for offset in (1, 3)}
"""Those of which Thunder makes regions."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each command prints, by its words, of two runs with inputs of other lengths."""
    from thunder.dynamo import thunderfx

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dynamo"))
        patch.setenv("FUSIONCACHE_DIR", str(tmp_path_factory.mktemp("store")))
        patch.setenv("FUSIONCACHE_STORE", "1")
        patch.delenv("COLUMNS", raising=False)
        for length in (2, 3):
            torch._dynamo.reset()
            transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", jobs=0)
            compiled = thunderfx(OwnNet(), executors=fusioncache.executors(), transforms=[transform], dynamic=False)
            compiled(torch.ones(length, 4)).sum().backward()
            transform.cache.write_record()
        first, second, *_ = (line.split()[0] for line in get_output("ls", "--programs").splitlines()[1:])
        calls = ["ls --programs", "ls", "diff", "stats", "stats -v", "stats --runs", "explain"]
        calls += [f"show {first}", f"explain {first}", f"diff {first} {second}"]
        found = {words: call(*words.split()).stdout for words in calls}
        assert call("report", "-o", "dynamo.html").exit_code == 0
        return {**found, "report": Path("dynamo.html").read_text(encoding="utf-8")}


def test_the_users_class_and_lines_are_named_and_the_class_of_graphs_is_not(shown):
    assert not {name for name, text in shown.items() if "GraphModule" in text}
    named = {name for name, text in shown.items() if "OwnNet" in text}
    # A list of templates has names of operations, and a comparison of runs has their names.
    assert named == shown.keys() - {"ls", "explain"}
    programs = shown["ls --programs"]
    assert {line.split()[1] for line in programs.splitlines()[1:]} == {"OwnNet"}
    assert "OwnNet (part 1 of 2)" in programs and "OwnNet (from line " in programs
    assert "<h1>OwnNet</h1>" in shown["report"]
    assert "eval_with_key" not in shown["explain"] + shown["report"]
    assert all(line in shown["explain"] for line in _LINES)


def test_what_was_not_given_to_thunder_is_counted_with_the_reason(shown):
    why = "sinc only has an automatic torch fallback in thunder"
    assert f"Dynamo 1 operation not given to Thunder: {why} (1)" in " ".join(shown["stats"].split())
    assert "bypassed" not in shown["stats"] and "No region was bypassed." in shown["report"]
    assert f'<tr><th scope="row">{why}</th><td class="n">1</td></tr>' in shown["report"]
    assert '1 operation was <a href="#not-given">not given to Thunder</a>: ' in shown["report"]
