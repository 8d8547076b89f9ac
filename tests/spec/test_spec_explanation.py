"""The command line shows what was shared, and why something was compiled or traced again."""

import json

import pytest
import thunder
import torch
from click.testing import CliRunner

import fusioncache
from fusioncache.cli.main import main


def train(width):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(3)]
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = thunder.jit(torch.nn.Sequential(*layers), executors=fusioncache.executors(), transforms=[transform])
    compiled(torch.ones(4, width)).sum().backward()


def run_command(*arguments):
    """Returns what a command prints."""
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def runs(monkeypatch):
    """Records two runs that differ in the width of the model."""
    for width in (8, 16):
        train(width)


def test_stats_counts_regions_and_templates(runs):
    stats = json.loads(run_command("stats", "--json"))
    assert stats["regions"] > stats["templates"] > 0
    assert stats["hits"] == stats["regions"] - stats["templates"]


def test_show_prints_the_operations_of_a_template(runs):
    template = json.loads(run_command("ls", "--json"))["templates"][0]
    assert "prims." in run_command("show", template["digest"])


def test_explain_names_what_differs_between_two_templates(runs):
    templates = json.loads(run_command("ls", "--json"))["templates"]
    said = run_command("explain", templates[0]["digest"], templates[1]["digest"])
    assert said.startswith("They differ in ")


def test_explain_of_a_template_with_itself_finds_no_difference(runs):
    digest = json.loads(run_command("ls", "--json"))["templates"][0]["digest"]
    assert "the same" in run_command("explain", digest, digest)


def test_an_unknown_template_is_an_error_that_says_what_to_do(runs):
    result = CliRunner().invoke(main, ["show", "nothing-of-that-name"])
    assert result.exit_code != 0
    assert "fusioncache ls" in result.output
