"""What Dynamo hands to Thunder has the name of the user's class or function, wherever people see it."""

import torch
from behind_dynamo import OwnNet, compile_behind_dynamo

from fusioncache.store.entry import is_program
from fusioncache.transform.graph_names import GraphNames

LINE = OwnNet.forward.__code__.co_firstlineno + 2


def alone(x):
    return torch.sin(x) + 1.0


def names_of(transform):
    """Returns the names of the programs in a transform's store."""
    return sorted(entry.name for entry in transform.cache.store.entries() if is_program(entry.backend))


def test_a_part_has_the_name_of_the_users_class(tmp_path):
    compiled, transform = compile_behind_dynamo(OwnNet(), tmp_path)
    compiled(torch.ones(2, 4)).sum().backward()
    assert names_of(transform) == sorted(["OwnNet (part 1 of 2)", "OwnNet (part 2 of 2)", f"OwnNet (from line {LINE})"])


def test_a_graph_in_one_part_has_the_functions_name(tmp_path):
    compiled, transform = compile_behind_dynamo(alone, tmp_path)
    compiled(torch.ones(2, 4))
    assert names_of(transform) == ["alone"]


def test_what_dynamo_did_not_make_has_no_name_of_a_graph():
    names, graph = GraphNames(), torch.fx.symbolic_trace(torch.nn.Linear(4, 4))
    names.note(torch.nn.Linear(4, 4))
    names.note(graph)  # which nothing of Dynamo's knows
    assert names.name_of(graph) is None and names.name_of(alone) is None
