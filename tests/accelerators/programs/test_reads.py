"""What finds again what was read, by its name."""

import collections.abc
import sys

import pytest
import torch

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.text import Read, find_difference, find_text


def test_a_module_that_was_not_imported_is_a_difference_and_stays_so():
    read = Read("attribute", "antigravity.webbrowser", "nothing")
    found = find_difference([read], Describer())
    assert found is not None and (found.read, found.now) == (read, None)
    assert "antigravity" not in sys.modules


def test_a_name_that_is_missing_is_found_as_nothing():
    assert find_text("attribute", "math.no_such_name", Describer()) == "nothing"
    assert find_text("global", "math.no_such_name", Describer()) == "nothing"
    assert find_text("function", "math:no_such_name", Describer()) is None


def test_a_function_is_found_in_the_body_of_a_class_and_of_its_bases():
    assert introspection.find_qualified("collections.abc", "Mapping.get") is vars(collections.abc.Mapping)["get"]
    assert introspection.find_qualified("collections", "OrderedDict.update") is vars(collections.OrderedDict)["update"]
    with pytest.raises(LookupError):
        introspection.find_qualified("collections.abc", "Mapping.get.__code__")


def test_only_listed_questions_are_asked(monkeypatch):
    assert find_text("query", "torch.get_default_dtype()", Describer()) == "torch.float32"
    assert find_text("query", 'torch.is_autocast_enabled("cpu")', Describer()) == "False"
    assert find_text("query", "torch.seed()", Describer()) is None
    assert find_text("query", "os.getpid()", Describer()) is None
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float32)
    assert find_text("query", "torch.get_default_dtype()", Describer()) is None


@pytest.mark.parametrize("args", [(), ("cpu",), (1, True), ("a'b\"",)])
def test_a_question_is_python_that_asks_it(args):
    name, _, rest = introspection.write_question("f", args).partition("(")
    assert name == "f" and eval(f"({rest[:-1]},)" if args else "()") == args


def test_a_namespace_with_builtins_of_its_own_is_none_of_a_module(monkeypatch):
    assert introspection.find_builtins({"__builtins__": __builtins__}) is introspection.find_builtins({})
    with pytest.raises(LookupError):
        introspection.find_builtins({"__builtins__": {"len": len}})


def test_a_module_is_found_by_its_names_only_if_they_are_its_own():
    assert introspection.find_module_name(vars(torch.nn.functional)) == "torch.nn.functional"
    assert introspection.find_module_name(vars(collections.abc.Mapping)) is None
    assert introspection.find_module_name({"__name__": "torch"}) is None
    assert introspection.find_module_name(collections.abc.Mapping.get.__globals__) in (
        "_collections_abc",
        "collections.abc",
    )
