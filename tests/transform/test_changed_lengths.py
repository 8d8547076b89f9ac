"""Whatever changed since the first lengths is seen at a further one: in the same process, and in a later one."""

import contextlib
import inspect
import math
import shutil
from types import CodeType

import pytest
import thunder
import torch
from blank_programs import blank
from instructions import list_instructions
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.layers import session
from fusioncache.accelerators.programs import build, key
from fusioncache.accelerators.programs.build import compile_trace, write_program
from fusioncache.accelerators.programs.template_loader import find_references
from fusioncache.accelerators.sizes import lengths
from fusioncache.accelerators.sizes.lengths import Lengths

SCALE = 2.0


def scale(x):
    return x * 2.0


class Model(torch.nn.Module):
    """Attention with positions, a rotary table cut to the length, a mask made of it, and a product over all tokens."""

    factor = 3.0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50)
        self.register_buffer("table", torch.randn(512, 16))
        self.dropout = torch.nn.Dropout(0.0)
        self.power = 2
        self.options = {"scale": 2.0, "limits": [300, 400]}

    def forward(self, tokens, weights=None):
        batch, length = tokens.shape
        x = self.embedding(tokens) * torch.cos(self.table[:length]) + torch.arange(length)[:, None]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        x = torch.nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)[:, 0]
        x = self.dropout(x) * self.options["scale"] * self.factor**self.power
        x = scale(x) * SCALE if length < self.options["limits"][0] else x
        x = x if weights is None else x * weights[..., None]
        return self.head(x.reshape(batch * length, 16)).view(batch, length, -1)


def tokens(length, batch=2):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(length))


def train(compiled, model, *args, **kwargs):
    model.zero_grad()
    result = compiled(*args, **kwargs)
    if result.requires_grad:
        result.float().sum().backward()
    return [result, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


def counts(transform):
    """Returns how many programs were not interpreted, and why others were."""
    stats = transform.stats()
    return stats.programs_replayed + stats.programs_filled, dict(stats.programs_interpreted)


def make_known(directory):
    """Returns a model, compiled and called at two lengths, and its transform."""
    model = Model()
    compiled, transform = compile_anew(model, directory)
    for length in (64, 96):
        train(compiled, model, tokens(length))
    return model, compiled, transform


@pytest.fixture(scope="module", name="stored")
def _stored(tmp_path_factory):
    return tmp_path_factory.mktemp("lengths")


@pytest.fixture(scope="module", name="pair")
def _pair(stored):
    """A model that has seen two lengths, and the same as Thunder does it that interprets each length."""
    model, compiled, transform = make_known(stored / "store")
    shutil.copytree(stored / "store", stored / "two lengths")
    own, _ = compile_anew(model, stored / "own", programs=False, sizes="static")
    return model, compiled, transform, own


@pytest.fixture(name="store")
def _store(pair, stored, tmp_path):
    """A store that a process has left which had two lengths."""
    return shutil.copytree(stored / "two lengths", tmp_path / "store")


@pytest.mark.parametrize("fills", [True, False])
def test_the_program_is_thunders_to_the_letter(tmp_path, monkeypatch, fills):
    """Traces with the names of templates, their graphs and regions: filled in, and by Thunder's own passes."""
    model, *pair = make_known(tmp_path / "store")
    if not fills:
        monkeypatch.setattr(Lengths, "fill", lambda *_: None)
    own = compile_anew(model, tmp_path / "own", sizes="static")
    texts, results = [], []
    for compiled, transform in (pair, own):
        with monkeypatch.context() as patch:
            if fills and transform is pair[1]:
                patch.setattr(build, "compile_trace", None)  # that was done at the second length
            with without_interpreter() if transform is pair[1] else contextlib.nullcontext():
                results.append(train(compiled, model, tokens(200)))
        entry = thunder.compile_stats(compiled).interpreter_cache[-1]
        written = write_program(entry, model, find_references(transform.calls()))
        texts.append([blank(written), sorted(written.templates())])
        # What runs is what the text says.
        functions = {"computation": entry.computation_fn, "backward_fn": entry.backward_fn}
        for trace in filter(lambda trace: trace.name in functions, written.traces()):
            (code,) = (each for each in compile_trace(trace).co_consts if isinstance(each, CodeType))
            runs = inspect.unwrap(functions[trace.name]).__code__
            assert list_instructions(runs)[-1] == list_instructions(code)[-1]
    assert texts[0] == texts[1]
    assert all(map(torch.equal, *results))
    stats = pair[1].stats()
    assert (stats.programs_filled, stats.programs_replayed) == (int(fills), int(not fills))


def switch(change, value, former):
    """Changes a setting of torch's, and returns what undoes that."""
    change(value)
    return lambda: change(former)


CHANGES = {
    "whether gradients are computed": lambda *_: switch(torch.set_grad_enabled, False, True),
    "the default dtype": lambda *_: switch(torch.set_default_dtype, torch.float64, torch.float32),
    "an attribute": lambda model, patch: patch.setattr(model, "power", 3),
    "the type of a parameter": lambda model, _: model.head.double().float,
    "a global": lambda _, patch: patch.setitem(globals(), "SCALE", 5.0),
    "the code of a function": lambda _, patch: patch.setattr(scale, "__code__", (lambda x: x * 9.0).__code__),
}
"""Each with a function that changes it, and returns what undoes that, if ``patch`` does not.

What is known of a length goes by the key of a program but for sizes, and by what was read. Other tests say what is in
these: ``test_program_mutations.py``, ``test_last_key.py``. These changes show that both are asked.
"""


def _try(compiled, model, length):
    try:
        return train(compiled, model, tokens(length))
    except (AssertionError, RuntimeError) as error:
        return error


def _assert_alike(expected, found):
    assert type(expected) is type(found)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))
    else:  # Thunder holds parameters and buffers that the model had at first
        assert str(found) == str(expected)


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_seen(pair, what):
    model, compiled, transform, own = pair
    length = 100 + 2 * list(CHANGES).index(what)
    before = counts(transform)[0]
    with pytest.MonkeyPatch.context() as patch:
        undo = CHANGES[what](model, patch)
        _assert_alike(*(_try(each, model, length) for each in (own, compiled)))
        if undo is not None:
            undo()
    assert counts(transform)[0] == before
    train(compiled, model, tokens(length + 1))
    assert counts(transform)[0] == before + 1


LATER = {
    **{name: CHANGES[name] for name in ("the default dtype", "an attribute", "a global")},
    "the version of the format": lambda _, patch: patch.setattr(key, "FAMILY_FORMAT", key.FAMILY_FORMAT + 1),
    "what decides": lambda _, patch: patch.setattr(thunder.executors.utils, "_fused_sdp_choice", lambda *_: "other"),
}


@pytest.mark.parametrize("what", LATER)
def test_what_changed_is_seen_by_a_later_process(store, tmp_path, what):
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        undo = LATER[what](model, patch)
        compiled, transform = compile_anew(model, store)
        own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
        _assert_alike(*(_try(each, model, 40) for each in (own, compiled)))
        if undo is not None:
            undo()
        assert transform.stats().programs_filled == 0


@pytest.mark.parametrize(
    "argument",
    [tokens(200).int(), tokens(400)[:, ::2], tokens(1)],
)
def test_other_arguments_are_interpreted(pair, argument):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    assert all(map(torch.equal, train(compiled, model, argument), train(own, model, argument)))
    assert counts(transform)[0] == before


def test_numbers_in_parameters_and_buffers_may_change(pair):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    with torch.no_grad():
        model.table.add_(1.0)
        model.head.weight.mul_(2.0)
    assert all(map(torch.equal, train(compiled, model, tokens(201)), train(own, model, tokens(201))))
    assert counts(transform)[0] == before + 1


def test_arguments_that_vary_together(pair):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    for number, length in enumerate((64, 96, 8)):
        weights = torch.rand(2, length, requires_grad=True)
        found, expected = (train(each, model, tokens(length), weights=weights) for each in (compiled, own))
        assert all(map(torch.equal, found, expected))
        assert counts(transform)[0] - before == max(0, number - 1)
    with pytest.raises(Exception, match="broadcast"):
        train(compiled, model, tokens(300), weights=torch.rand(2, 200, requires_grad=True))


class Block(torch.nn.Module):
    """Looks at all tokens, and has a mask made of the length."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x, mask):
        scores = torch.where(mask, x @ x.transpose(1, 2), -1e9)
        return x + self.linear(torch.softmax(scores, -1) @ x)


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens):
        x, length = self.embedding(tokens), tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        for block in self.blocks:
            x = block(x, mask)
        return x


def test_blocks_that_are_copied_are_called_again(tmp_path):
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # from now on Dynamo tags each new module
    model = Deep()
    compiled, transform = compile_anew(model, tmp_path / "store")
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    for length in (64, 96):
        train(compiled, model, tokens(length))
        assert session.OUTCOMES[-1].written == 1
    with without_interpreter():
        found = train(compiled, model, tokens(200, 3))
    assert all(map(torch.equal, found, train(own, model, tokens(200, 3))))
    assert counts(transform) == (1, {})


class Quiet(thunder.core.transform_common.Transform):
    """A transform that could change Thunder's first traces."""

    def cache_key(self):
        return ""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        return prologue_trace, computation_trace, epilogue_trace


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"sizes": "static"}, {}),
        ({"verify": True}, {}),
        ({"programs": False}, {}),
        ({"jit": {"transforms": [Quiet()]}}, {"Quiet may change Thunder's first traces": 2}),
    ],
)
def test_where_every_length_is_interpreted(tmp_path, options, reasons):
    compiled, transform = compile_anew(scale, tmp_path, **options)
    for length in (64, 96, 200):
        assert torch.equal(compiled(torch.ones(2, length)), torch.full((2, length), 2.0))
    assert counts(transform) == (0, reasons)


def test_it_goes_on_where_no_family_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "keep_family", lambda *_, **__: False)
    compiled, transform = compile_anew(scale, tmp_path)
    for length in (64, 96, 200, 65, 8):
        assert torch.equal(compiled(torch.ones(2, length)), torch.full((2, length), 2.0))
    assert counts(transform) == (3, {})
    assert transform.stats().programs_made == 2
    later, transform = compile_anew(scale, tmp_path)
    later(torch.ones(2, 200))
    assert (transform.stats().programs_loaded, transform.stats().programs_made) == (0, 1)


def test_returned_lengths_are_of_a_plain_type(tmp_path):
    compiled, _ = compile_anew(lambda x: {"all": [x.shape[0], (math.prod(x.shape),)], x.shape[1]: x + 1}, tmp_path)
    for length in (64, 96, 65):
        found = compiled(torch.ones(2, length))
        numbers = [*found["all"][:1], *found["all"][1], list(found)[1]]
        assert numbers == [2, 2 * length, length] and {*map(type, numbers)} == {int}
