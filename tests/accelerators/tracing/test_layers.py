"""Blocks that are alike are written out as Thunder would have interpreted them, and no others."""

import random

import block_models
import pytest
import thunder
import torch
from block_models import InBlocks, Model

import fusioncache
from benchmarks.equality.traces import recording, trace_recorded
from fusioncache import tracing
from fusioncache.accelerators.layers import session
from fusioncache.accelerators.layers.block_independence import is_plain
from fusioncache.thunder_adapter.hooks import is_hashed_alone
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 8).reshape(2, 4)
COUNT = 5  # of which one is interpreted as names are taken in it, one is recorded, one has to come out as predicted
OTHERS = tuple(group for group in TRACING if group != "layers")


class Claiming(type):
    """Says that its classes are int."""

    __hash__ = type.__hash__

    def __eq__(cls, other):
        return other is int or other is cls


class Claimed(metaclass=Claiming):
    """Is not equal to itself, and would say so to whoever asks."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return False


class Traced(BaseException):
    """The first trace is made."""


@pytest.fixture(autouse=True)
def _without_shortcuts():
    """Other tests may have left the shortcuts in place, in whatever order they come."""
    tracing.uninstall()
    yield
    tracing.uninstall()


@pytest.fixture
def trace(monkeypatch):
    """Returns the texts of what Thunder makes of a model before its passes, or what is raised."""

    def trace(model, groups):
        own, texts = thunder.thunder_general_jit, []

        def stop(*args, **kwargs):
            made, prepare.recorder = trace_recorded(own, *args, **kwargs)
            texts.extend(map(str, (made.prologue_trace, made.computation_trace, made.epilogue_trace)))
            raise Traced

        with monkeypatch.context() as patch:
            patch.setattr(thunder, "thunder_general_jit", stop)
            try:
                thunder.jit(model)(X)
            except Traced:
                return texts
            except Exception as error:
                return [type(error).__name__, str(error).partition(" while tracing ")[0]]

    def prepare(model, groups):
        tracing.uninstall()
        tracing.install(groups)
        random.seed(0)
        block_models.forget()
        block_models.SPECIAL[:] = [model.blocks[-1]]
        return trace(model, groups)

    return prepare


@pytest.fixture
def compare(trace):
    """Traces a model with and without blocks being written out; returns what became of them."""

    def compare(model):
        session.OUTCOMES.clear()
        texts = trace(model, TRACING)
        (outcome,) = session.OUTCOMES
        assert texts == trace(model, OTHERS) and len(texts) == 3
        return outcome

    return compare


@pytest.mark.parametrize("kind", block_models.ALIKE, ids=lambda kind: kind.__name__)
def test_blocks_that_are_alike_are_written_out(kind, compare):
    assert compare(Model(kind, COUNT)).written == COUNT - 3


@pytest.mark.parametrize(
    ("kind", "reason"), block_models.REFUSED.items(), ids=lambda each: getattr(each, "__name__", "")
)
def test_a_block_that_another_one_does_not_foretell_is_interpreted(kind, reason, compare):
    outcome = compare(Model(kind, COUNT))
    assert outcome.written == 0 and any(reason in each for each in outcome.reasons)


@pytest.mark.parametrize(
    ("kind", "how", "written"), block_models.CALLED, ids=lambda each: getattr(each, "__name__", "")
)
def test_calls_that_differ_are_interpreted(kind, how, written, compare):
    assert compare(InBlocks(kind, how, COUNT)).written == written


@pytest.mark.parametrize(("how", "reason"), block_models.LATE.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_model_that_looks_at_what_was_written_out_is_traced_again(how, reason, compare):
    assert compare(InBlocks(block_models.Block, how, COUNT)).reasons[reason] == 1


@pytest.mark.parametrize(("changes", "is_alike"), block_models.CHANGES.items())
def test_a_block_that_differs_is_interpreted(changes, is_alike, compare):
    """Each stands behind one that does not differ."""
    model = Model(block_models.Block, 3 + 2 * len(changes))
    for change, one, other in zip(changes, model.blocks[3::2], model.blocks[4::2], strict=True):
        change(one, other)
    assert compare(model).written == len(changes) * (1 + is_alike)


def test_blocks_of_two_kinds_by_turns_are_written_out_each_by_its_own(compare):
    model = Model(block_models.Block, 9)
    for number in range(1, 9, 2):
        model.blocks[number].factor = 3.0
    assert compare(model).written == 4


def test_other_forms_of_a_list_of_blocks_are_found(compare):
    model = Model(block_models.Block, COUNT)
    model.blocks = torch.nn.Sequential(*model.blocks)
    assert compare(model).written == COUNT - 3


def test_each_block_that_was_written_out_is_guarded():
    model = Model(block_models.Block, COUNT)
    tracing.install()
    compiled = thunder.jit(model)
    with recording():
        compiled(X)
    assert session.OUTCOMES[-1].written == COUNT - 3
    model.blocks[-1].factor = 7.0
    assert torch.allclose(compiled(X), model(X), atol=1e-6)
    assert thunder.cache_misses(compiled) == 2


def test_an_error_is_thunders_own(trace):
    model = InBlocks(block_models.Block, block_models.fail_late, COUNT)
    with_layers = trace(model, TRACING)
    assert with_layers == trace(model, OTHERS) and with_layers[0] == "ZeroDivisionError"
    assert session.OUTCOMES[-1].reasons["an exception was raised"] == 1


@pytest.mark.parametrize("programs", [True, False])
def test_a_program_that_is_kept_has_blocks_written_out(programs):
    session.OUTCOMES.clear()
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(store=True), programs=programs)
    thunder.jit(Model(block_models.Block, COUNT), executors=["fusioncache"], transforms=[transform])(X)
    assert [outcome.written for outcome in session.OUTCOMES] == [COUNT - 3] * programs
    assert not transform.stats().programs_refused
    assert transform.stats().programs_made == programs


def test_what_a_program_was_derived_from_is_the_same(trace):
    model = Model(block_models.Globals, COUNT)
    trace(model, TRACING)
    written = session.OUTCOMES[-1].written
    found = [trace(model, groups) and trace.recorder.reads() for groups in (TRACING, OTHERS)]
    assert written == COUNT - 3 and found[0] == found[1] and any(read.name.endswith("FLAG") for read in found[0])


def test_a_class_is_what_it_is_and_not_what_it_says():
    assert Claimed in (int,)
    assert is_plain(1) and is_plain((1, [2]))
    assert not is_plain(Claimed()) and not is_plain((1, [Claimed()]))
    assert is_hashed_alone(1) and is_hashed_alone((1, "a"))
    assert not is_hashed_alone(Claimed()) and not is_hashed_alone((1, Claimed()))
