"""Every command and code block of a document is run by a test, or this file has the reason why none runs it.

Nothing is run here: a command must be in a table, and accept the options it is shown with.
"""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any

import click
import pytest
from documents import DOCUMENTS, HAND_WRITTEN, read_blocks, read_commands, read_hand_written, read_inline_code
from repository import ROOT

import fusioncache
from benchmarks.figures.catalogue import CATALOGUE
from fusioncache import distributed
from fusioncache.cli.main import COMMANDS, main

_BENCHMARKS = {
    "test_smoke": "code_size equality first_step inference lengths memory starts step_overhead store",
    "test_runner": "distributed remote remote.fuzz saved_seconds summary",
    "test_budget": "budget",
    "test_verdicts": "prices",
}
RUN_BY = {
    "fusioncache.thunder_adapter.installation": "thunder_adapter/test_patches.py",
    "docs/api_page.py": "repository/test_readme.py",
    "docs/commands_page.py": "repository/test_readme.py",
    "tests/helpers/thunder_suite/run.py": "programs/test_thunder_suite.py",
    "train.py": "repository/test_readme.py",
    "make bench": "benchmarks/test_smoke.py",
    "make budget": "benchmarks/test_budget.py",
    "make figures": "repository/test_readme.py",
    "make golden": "repository/test_golden_models.py",
    "make overhead": "benchmarks/test_smoke.py",
    "build": "repository/test_packaging.py",
    **{f"fusioncache {name}": f"cli/golden/{name}-80.txt" for name in COMMANDS},
    **{f"benchmarks.{name}": f"benchmarks/{file}.py" for file, names in _BENCHMARKS.items() for name in names.split()},
}
"""Files that do the work of a command, on small inputs and without a GPU, by the command's name."""
NOT_RUN = {
    ".ci/run": "it runs all tests",
    "make test": "it runs all tests",
    "pytest": "it runs tests; those marked gpu need a GPU",
    "make check": "it needs no test beside itself: CI runs it",
    "make setup": "it needs the network, and takes minutes",
    "pip": "it needs the network, and takes minutes",
    "venv": "it makes the environment that tests run in",
    "git": "it changes a repository",
    "patch": "it changes another version of Thunder, which comes by the network",
    "repro.py": "a command writes this file, and tests/cli/test_cli_texts.py runs what it writes",
    "du": "a program of the system",
    "tail": "it never ends",
    "jq": "a program that the package does not need",
}
"""Reasons why no test runs a command, by the command's name."""
CODE_RUN_BY = {"README.md": "repository/test_readme.py", "docs/train.md": "repository/test_readme.py"}
CODE_NOT_RUN = {
    "docs/attention.md": "it needs a GPU: tests/accelerators/attention",
    "docs/graphs.md": "it needs a GPU: tests/accelerators/graphs",
    "docs/inference.md": "it needs 27 GB for its model: tests/transform/test_generation.py has a small one",
    "docs/schedule.md": "it needs several processes: tests/transform/test_sharded_training.py starts them",
    "docs/several-gpus.md": "it needs several processes: tests/transform/test_sharded_training.py starts them",
    "docs/tensor-parallel.md": "it needs several processes: tests/distributed/test_tensor_parallel.py starts them",
    "docs/upstream.md": "it needs a GPU: tests/backends/test_repeats_gpu.py",
}
"""Reasons why no test runs the Python code of a page."""
_OURS = {name: getattr(fusioncache, name) for name in ("FusionCache", "Cache", "Plugin", "executors")}
_OURS |= {"fusioncache": fusioncache, "distributed": distributed}
_OPTIONS_OF_OURS = re.compile(r"(?:fusioncache\.)?(?:FusionCache|Cache|Plugin|executors)\(")


def _name_command(words: Sequence[str]) -> list[str]:
    program, *arguments = words
    if program == "make":
        return [f"make {target}" for target in arguments if "=" not in target]
    if program == "fusioncache":
        return [f"fusioncache {arguments[0]}"]
    if program.startswith("python") and arguments[0] == "-m":
        return [arguments[1]]
    if program == "python":
        return ["python -c" if arguments[0] == "-c" else arguments[0]]
    return [program]


def _check_options(words: Sequence[str]) -> None:
    program, *arguments = words
    module = arguments[1] if arguments[:1] == ["-m"] else ""
    if program == "fusioncache":
        command = main.get_command(click.Context(main), arguments[0])
        assert command is not None, arguments[0]
        _parse(command, arguments)
    elif module.startswith("benchmarks."):
        found = importlib.import_module(module)
        if hasattr(found, "__path__"):
            found = importlib.import_module(f"{module}.__main__")
        _parse(found.main, arguments[1:])
    elif module.startswith("fusioncache."):
        assert find_spec(module), module
    elif program == "make":
        targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in arguments if "=" not in word} <= targets
    elif program == "pytest" or module == "pytest":
        assert all((ROOT / word).exists() for word in arguments if word.startswith("tests/"))


def _parse(command: click.Command, words: Sequence[str]) -> None:
    name, *arguments = words
    try:
        command.make_context(name, arguments)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        assert not arguments, words  # a sentence that names the command and nothing else
    except click.exceptions.Exit:
        assert "--help" in arguments, words
    except click.UsageError as error:
        pytest.fail(f"{' '.join(words)}: {error.message}")


@pytest.fixture(scope="module")
def commands() -> list[tuple[str, list[str]]]:
    """Returns each command of all documents and of their tables of benchmarks, with its page."""
    shown = [(page.name, words) for page in DOCUMENTS for words in read_commands(page)]
    for entry in chain.from_iterable(CATALOGUE.values()):
        line = entry.command if entry.command.startswith("python ") else f"python -m benchmarks.{entry.command}"
        shown.append(("measurements.md", shlex.split(line)))
    return shown


def test_each_command_is_run_by_a_test_or_cannot_be(commands):
    shown = {name: page for page, words in commands for name in _name_command(words)}
    assert len(commands) > 100
    assert not RUN_BY.keys() & NOT_RUN.keys()
    known = RUN_BY.keys() | NOT_RUN.keys()
    assert {name: page for name, page in shown.items() if name not in known} == {}
    assert sorted(known - shown.keys()) == [], "these are shown no more"
    assert not [file for file in RUN_BY.values() if not (ROOT / "tests" / file).exists()]


def test_commands_take_the_options_that_they_are_shown_with(commands):
    for _, words in commands:
        _check_options(words)
    for line in ("fusioncache ls --kind x", "python -m benchmarks.starts --depth 3", "make nothing"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):  # a renamed option is noticed
            _check_options(line.split())


def test_pages_with_code_are_run_by_a_test_or_cannot_be():
    pages = {str(page.relative_to(ROOT)) for page in HAND_WRITTEN if read_blocks("python", page)}
    assert pages == CODE_RUN_BY.keys() | CODE_NOT_RUN.keys()


def _find_ours(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _OURS.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _find_ours(node.value)) is not None:
        return getattr(owner, node.attr)
    return None


def test_code_has_names_and_options_that_there_are():
    found = 0
    for page in HAND_WRITTEN:
        inline = [code for code in read_inline_code(read_hand_written(page)) if _OPTIONS_OF_OURS.match(code)]
        for code in (*read_blocks("python", page), *inline):
            for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
                if (function := _find_ours(call.func)) is not None:
                    found += 1
                    given = {keyword.arg: None for keyword in call.keywords if keyword.arg}
                    try:
                        inspect.signature(function).bind_partial(*call.args, **given)
                    except TypeError as error:
                        pytest.fail(f"{page.name}: {ast.unparse(call)}: {error}")
    assert found > 40


def test_no_command_is_written_where_it_is_not_found():
    """Commands are looked for in blocks that are not indented, and between backticks of one line."""
    program = "(?:python|fusioncache|pip|make|pytest|git)"
    for page in HAND_WRITTEN:
        text = page.read_text()
        assert not re.findall(rf"^ +```|^ {{4}}{program} ", text, re.MULTILINE), page
        assert not re.findall(rf"(?<!`)`{program} [^`\n]*\n", text), page
