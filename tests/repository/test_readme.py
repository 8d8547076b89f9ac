"""README's code runs as it stands, and the commands that it names are there."""

import re
import shlex
import tomllib
import warnings

import click
import pytest
import torch
from documents import README, assert_shown, read_blocks, read_session

import fusioncache
from benchmarks.common.counting import use_backend
from fusioncache.cli.main import COMMANDS, main
from fusioncache.trace import executor, region_backends

_INLINE = re.compile(r"`([^`\n]+)`")


def test_the_code_runs_from_top_to_bottom(monkeypatch):
    # What is shown compiles with whatever is there. What compiles is none of what README says, and takes minutes.
    for module in (executor, region_backends):
        monkeypatch.setattr(module, "best_backend", lambda device: "eager")
    use_backend("eager")
    namespace: dict[str, object] = {"__name__": "readme"}
    before = fusioncache.default_cache().stats().hits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in read_blocks("python"):
            exec(compile(block, str(README), "exec"), namespace)
    assert fusioncache.default_cache().stats().hits > before


def test_every_way_in_makes_regions_that_are_shared(monkeypatch):
    monkeypatch.setattr(region_backends, "best_backend", lambda device: "eager")
    (block,) = (block for block in read_blocks("python") if "thunder.recipes" in block)
    namespace: dict[str, object] = {}
    exec(read_blocks("python")[0], namespace)
    for line in block.splitlines():
        if "FusionCache()" not in line and "Plugin()" not in line:
            exec(line, namespace)
            continue
        if "where nvFuser makes the regions" in line and not torch.cuda.is_available():
            continue
        torch.compiler.reset()
        before = fusioncache.default_cache().stats().regions
        compiled = eval(line.partition("  #")[0], namespace)
        compiled(torch.randn(4, 64)).sum().backward()
        assert fusioncache.default_cache().stats().regions > before, line


def _command_lines() -> list[str]:
    text = README.read_text()
    found = [line for line in read_session() if line.startswith("fusioncache ")]
    found += [code for code in _INLINE.findall(text) if code.startswith("fusioncache ") and "==" not in code]
    return sorted(set(found))


@pytest.mark.parametrize("line", _command_lines())
def test_commands_take_what_they_are_given(line):
    name, *arguments = shlex.split(line)[1:]
    assert name in COMMANDS
    command = main.get_command(click.Context(main), name)
    try:
        command.make_context(name, arguments, resilient_parsing=False)
    except click.MissingParameter:
        assert not arguments  # a sentence that names the command and nothing else
    except click.UsageError as error:
        pytest.fail(f"{line}: {error.message}")


def test_install_lines_name_extras_that_there_are():
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    named = ",".join(re.findall(r'pip install "\.\[([\w,]+)\]"', README.read_text())).split(",")
    assert "nvfuser" in named and project["optional-dependencies"].keys() >= set(named)


def test_links_lead_somewhere():
    text = README.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if not target.startswith("http"):
            assert (README.parent / path).exists(), target
            assert path or anchor in headings, target


def test_what_is_shown_is_compared_in_its_order():
    assert_shown("a 0.123\n...\nc  d", "a 9.876 b\nc\nd")
    with pytest.raises(AssertionError):
        assert_shown("c\n...\na", "a b c")
    with pytest.raises(AssertionError):
        assert_shown("0.0003", "1e-05")
