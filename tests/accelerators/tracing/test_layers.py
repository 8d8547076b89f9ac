"""Blocks that are alike are copied as Thunder would have interpreted them, and no other blocks."""

import copy
import random
from contextlib import suppress

import block_models
import pytest
import thunder
import torch
from block_models import Block, Model
from same_traces import stop_at_first

import fusioncache
from benchmarks.equality.traces import recording, trace_recorded
from fusioncache import tracing
from fusioncache.accelerators.layers import session
from fusioncache.accelerators.layers.block_independence import is_plain
from fusioncache.ir.errors import Declined
from fusioncache.thunder_adapter.hooks import has_builtin_hash
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 8).reshape(2, 4)
ALIKE = 2  # of five blocks; the others: one in which names are taken, one to record, one to check the prediction
OTHERS = tuple(group for group in TRACING if group != "layers")


@pytest.fixture(autouse=True)
def _watch_sessions(monkeypatch):
    block_models.SESSIONS.clear()
    monkeypatch.setattr(session, "Session", block_models.Watched)


class Claiming(type):
    """A metaclass whose classes claim to equal ``int``."""

    __hash__ = type.__hash__

    def __eq__(cls, other):
        return other is int or other is cls


def trace(model, groups):
    """Returns the texts of a model's traces before any pass, and its reads; or the type and text of the error."""
    tracing.uninstall()
    tracing.install(groups)

    def read(own, *given):
        made, recorder = trace_recorded(own, *given)
        found = [*map(str, (made.prologue_trace, made.computation_trace, made.epilogue_trace))]
        with suppress(Declined):
            found.append(recorder.reads())
        return found

    random.seed(0)
    block_models.forget()
    block_models.SPECIAL[:] = [model.blocks[-1], model.blocks[1].linear]
    try:
        return stop_at_first(read, model, X)
    except Exception as error:
        return [type(error).__name__, str(error).partition(" while tracing ")[0]]


def compare(model):
    """Asserts that a model's traces are equal with and without copied blocks; returns the session of the former."""
    block_models.SESSIONS.clear()
    same = copy.deepcopy(model)  # a trace may change the model
    for one, other in zip(model.parameters(), same.parameters(), strict=True):
        other.grad = one.grad
    found = trace(model, TRACING)
    (outcome,) = block_models.SESSIONS
    assert found == trace(same, OTHERS) and len(found) > 2
    return outcome


@pytest.mark.parametrize("kind", block_models.ALIKE.values(), ids=block_models.ALIKE)
def test_blocks_that_are_alike_are_written_out(kind):
    assert compare(Model(kind)).written == ALIKE


@pytest.mark.parametrize(
    ("reason", "kind"), [(reason, kind) for reason, kinds in block_models.REFUSED.items() for kind in kinds]
)
def test_a_block_that_another_one_does_not_foretell_is_interpreted(kind, reason):
    outcome = compare(Model(kind))
    assert outcome.written == 0 and any(reason in each for each in outcome.reasons)


@pytest.mark.parametrize("case", block_models.CALLED.values(), ids=block_models.CALLED)
def test_calls_that_differ_are_interpreted(case):
    written, kind, how, *made = case
    assert compare(Model(kind, how, 5, *made)).written == written


@pytest.mark.parametrize(("reason", "how"), block_models.LATE.items())
def test_a_model_that_looks_at_what_was_written_out_is_traced_again(how, reason):
    assert compare(Model(Block, how)).reasons[reason] == 1


@pytest.mark.parametrize(("is_alike", "changes"), block_models.CHANGES.values(), ids=block_models.CHANGES)
def test_a_block_that_differs_is_interpreted(changes, is_alike):
    """Each changed pair of blocks follows one that does not differ."""
    model = Model(Block, count=3 + 2 * len(changes))
    for change, one, other in zip(changes, model.blocks[3::2], model.blocks[4::2], strict=True):
        change(one, other)
    assert compare(model).written == len(changes) * (1 + is_alike)


@pytest.mark.parametrize(("place", "name"), [(0, "linear"), (1, "shift"), (2, "gain")])
def test_what_a_block_shares_with_an_interpreted_one_is_as_thunder_has_it(place, name):
    model = Model()
    setattr(model.blocks[4], name, getattr(model.blocks[place], name))
    assert compare(model).written <= ALIKE


def test_blocks_that_look_into_each_other_are_as_thunder_has_them():
    model = Model(block_models.of(lambda self, x: Block.run(self, x) * self.peer.gain.sum()))
    for block, before in zip(model.blocks, (model.blocks[-1], *model.blocks), strict=False):
        block.__dict__["peer"] = before
    model.blocks[4].shift = model.blocks[1].gain.detach()[:]
    assert compare(model).written <= ALIKE


def test_blocks_of_two_kinds_by_turns_are_written_out_each_by_its_own():
    model = Model(count=9)
    for block in model.blocks[1::2]:
        block.factor = 3.0
    model.blocks = torch.nn.Sequential(*model.blocks)  # another form of a list
    assert compare(model).written == 4


def test_each_block_that_was_written_out_is_guarded():
    model = Model()
    tracing.install()
    compiled = thunder.jit(model)
    with recording():
        compiled(X)
    assert block_models.SESSIONS[-1].written == ALIKE
    model.blocks[-1].factor = 7.0
    assert torch.allclose(compiled(X), model(X), atol=1e-6)
    assert thunder.cache_misses(compiled) == 2


def test_an_error_is_thunders_own():
    model = Model(Block, block_models.fail_late)
    with_layers = trace(model, TRACING)
    assert with_layers == trace(model, OTHERS) and with_layers[0] == "ZeroDivisionError"
    assert block_models.SESSIONS[-1].reasons["an exception was raised"] == 1
    model = Model()
    del model.blocks[3].factor  # the error is in a block
    expected = ["AttributeError", "'Block' object has no attribute 'factor'"]
    assert trace(model, TRACING) == trace(model, OTHERS) == expected


@pytest.mark.parametrize("programs", [True, False])
def test_a_program_that_is_kept_has_blocks_written_out(programs):
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(store=True), programs=programs)
    thunder.jit(Model(), executors=["fusioncache"], transforms=[transform])(X)
    assert [outcome.written for outcome in block_models.SESSIONS] == [ALIKE] * programs
    assert not transform.stats().programs_refused
    assert transform.stats().programs_made == programs


def test_what_a_program_was_derived_from_is_known():
    *_, reads = trace(Model(block_models.GLOBALS), TRACING)
    assert block_models.SESSIONS[-1].written == ALIKE and any(read.name.endswith("FLAG") for read in reads)


def test_a_class_is_what_it_is_and_not_what_it_says():
    liar = Claiming("Liar", (), {})()
    assert type(liar) in (int,)
    for is_known, pair in ((is_plain, [2]), (has_builtin_hash, "a")):
        assert is_known(1) and is_known((1, pair))
        assert not is_known(liar) and not is_known((1, liar))
