"""A replacement stands in wherever the original was imported by name, and only for the source that is known."""

import sys
from functools import cached_property
from types import ModuleType

import pytest
import torch
from replaced_functions import original, shorten
from same_traces import list_interpreted
from thunder.core import interpreter, pytree

from fusioncache import tracing
from fusioncache.thunder_adapter import installation
from fusioncache.thunder_adapter.installation import Replacement, digest_source


class Methods:
    def method(self):
        return "method"

    @staticmethod
    def static():
        return "static"

    @classmethod
    def of_class(cls):
        return "class"

    @property
    def plain(self):
        return "property"

    @cached_property
    def cached(self):
        return "cached"


@pytest.fixture
def module(monkeypatch):
    """Makes modules of some name that have imported the original by name."""

    def make(name, **values):
        made = ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    yield make
    tracing.uninstall()  # while they are there


def install(*replacements):
    installation.install_more("tried", lambda: replacements)


def test_everywhere_is_where_it_was_imported_by_name(module):
    home = module("thunder.home", original=original)
    importer = module("thunder.deep.importer", renamed=original, twice=original, other=shorten)
    stranger = module("thunderous", original=original)
    install(Replacement(home, "original", shorten, everywhere=True))
    ours = home.original
    assert ours is importer.renamed is importer.twice is not original
    assert (stranger.original, importer.other) == (original, shorten)

    meanwhile = module("fusioncache.meanwhile", original=ours)
    importer.twice = "another one"
    installation.uninstall()
    assert home.original is importer.renamed is meanwhile.original is original
    assert importer.twice == "another one"


def test_a_module_that_is_imported_while_others_are_installed_has_it_too(module):
    home = module("thunder.home", original=original, first=len)

    def import_one(_):
        module("thunder.late", renamed=original)
        return max

    twice = Replacement(home, "original", shorten, everywhere=True, around=True)
    known = Replacement(home, "original", lambda own: lambda: own(), everywhere=True)
    install(Replacement(home, "first", import_one), known, twice)
    late = sys.modules["thunder.late"]
    assert late.renamed is home.original
    assert home.original() == "shortened original"
    installation.uninstall()
    assert late.renamed is home.original is original


def test_what_is_wholly_there_is_not_looked_for_again(module):
    home, counts, asked = module("thunder.home", original=original), [], []

    def replacements():
        asked.append(None)
        return (Replacement(home, "original", shorten),)

    def take_out():
        home.original = original

    for change in (None, None, take_out, None, installation.uninstall):
        if change:
            change()
        installation.install_more("tried", replacements)
        assert home.original is not original
        counts.append(len(asked))
    installation.uninstall()
    assert counts == [1, 1, 2, 2, 3] and home.original is original


@pytest.mark.parametrize("name", [name for name in vars(Methods) if not name.startswith("_")])
def test_methods_and_properties_have_a_source_and_come_back_as_they_were(name):
    own = vars(Methods)[name]
    changed = property(lambda self: "changed")
    others = [digest_source(other) for key, other in vars(Methods).items() if key[0] != "_"]
    assert others.count(digest_source(own)) == 1
    install(Replacement(Methods, name, lambda _: changed))
    assert vars(Methods)[name] is changed and getattr(Methods(), name) == "changed"
    installation.uninstall()
    assert vars(Methods)[name] is own


def test_code_that_is_interpreted_has_thunders_own_function_interpreted():
    """As in Thunder's ``test_eval_trace``: what a model calls of Thunder's own must not show that it was replaced."""

    def model(x):
        return pytree.tree_map(lambda each: each * 2, x)

    def interpreted():
        return [frame.code.co_name for frame in list_interpreted(model, torch.ones(2))]

    own, before = interpreted(), dict(interpreter._default_lookaside_map)
    installation.install(["mapping"])
    assert interpreted() == own
    installation.uninstall()
    assert interpreter._default_lookaside_map == before
