"""Steps at a third length: nothing is interpreted, and whatever changed since the second one is seen."""

import contextlib
import inspect
import math
from types import CodeType

import pytest
import thunder
import torch
from blank_programs import blank
from instructions import list_instructions
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.layers import session
from fusioncache.accelerators.programs import build, program_list
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
        scores = torch.where(mask, x @ x.transpose(1, 2) / math.sqrt(16), -1e9)
        x = self.dropout(torch.softmax(scores, -1) @ x) * self.options["scale"] * self.factor**self.power
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


def expect(model, directory, *args, **kwargs):
    """Returns what a process has that has seen no other length."""
    compiled, _ = compile_anew(model, directory / "own", programs=False, sizes="static")
    return train(compiled, model, *args, **kwargs)


def counts(transform):
    """Returns how many programs nobody interpreted, and why others were."""
    stats = transform.stats()
    return stats.programs_replayed + stats.programs_filled, dict(stats.programs_interpreted)


def make_known(directory):
    """Returns a model, compiled and called at two lengths, and its transform."""
    torch.manual_seed(0)
    model = Model()
    compiled, transform = compile_anew(model, directory)
    for length in (64, 96):
        train(compiled, model, tokens(length))
    return model, compiled, transform


@pytest.fixture(name="known")
def _known(tmp_path):
    return make_known(tmp_path)


@pytest.fixture(scope="module", name="pair")
def _pair(tmp_path_factory):
    """The same, and once more as Thunder does it that interprets each length."""
    directory = tmp_path_factory.mktemp("pair")
    model, compiled, transform = make_known(directory)
    own, _ = compile_anew(model, directory / "own", programs=False, sizes="static")
    train(own, model, tokens(64))
    return model, compiled, transform, own


def test_a_third_length_is_not_interpreted(known, tmp_path):
    model, compiled, transform = known
    for number, (length, batch) in enumerate(((200, 2), (65, 3), (2, 5)), 1):
        expected = expect(model, tmp_path, tokens(length, batch))
        with without_interpreter():
            found = train(compiled, model, tokens(length, batch))
        assert all(map(torch.equal, found, expected))
        assert counts(transform) == (number, {})
    assert transform.stats().programs_made == 3  # those that are not filled in


@pytest.mark.parametrize("fills", [True, False])
def test_the_program_is_thunders_to_the_letter(known, tmp_path, monkeypatch, fills):
    """Traces with the names of templates, their graphs and regions: filled in, and by Thunder's own passes."""
    model, *pair = known
    if not fills:
        monkeypatch.setattr(Lengths, "fill", lambda *_: None)
    own = compile_anew(model, tmp_path / "own", sizes="static")
    texts = []
    for compiled, transform in (pair, own):
        with monkeypatch.context() as patch:
            if fills and transform is pair[1]:
                patch.setattr(build, "compile_trace", None)  # that was done at the second length
            train(compiled, model, tokens(200))
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
    stats = pair[1].stats()
    assert (stats.programs_filled, stats.programs_replayed) == (int(fills), int(not fills))


@pytest.mark.parametrize("is_family_kept", [True, False])
def test_a_later_process_has_the_program_of_a_third_length(tmp_path, monkeypatch, is_family_kept):
    """It fills it in as well, or else loads it."""
    if not is_family_kept:
        monkeypatch.setattr(lengths, "keep_family", lambda *_: False)
    model, compiled, _ = make_known(tmp_path)
    found = train(compiled, model, tokens(200))
    again, transform = compile_anew(model, tmp_path)
    with without_interpreter():
        assert all(map(torch.equal, train(again, model, tokens(200)), found))
    stats = transform.stats()
    assert (stats.programs_filled, stats.programs_loaded) == ((1, 0) if is_family_kept else (0, 1))


def test_gradients_that_add_up_change_nothing(tmp_path):
    model = Model()
    compiled, transform = compile_anew(model, tmp_path)
    for length in (64, 96):
        compiled(tokens(length)).sum().backward()
    with without_interpreter():
        compiled(tokens(200)).sum().backward()
    assert counts(transform) == (1, {})


def test_1_is_interpreted(pair):
    model, compiled, transform, own = pair
    before = counts(transform)
    assert all(map(torch.equal, train(compiled, model, tokens(1)), train(own, model, tokens(1))))
    replayed, reasons = counts(transform)
    assert (replayed, sum(reasons.values())) == (before[0], sum(before[1].values()) + 1)


def test_a_length_on_the_other_side_of_a_comparison_is_interpreted(known, tmp_path):
    model, compiled, transform = known
    for length, replayed in ((299, 1), (300, 1), (350, 1), (400, 2)):
        expected = expect(model, tmp_path, tokens(length))
        assert all(map(torch.equal, train(compiled, model, tokens(length)), expected))
        assert counts(transform)[0] == replayed
    ((reason, count),) = counts(transform)[1].items()
    assert count == 2
    assert "test_third_lengths.py" in reason
    assert reason.endswith("compares: shape(t_0)[1] < 300")


def exchange(model, name, value):
    """Gives a module another part, and returns what gives it the former one back."""
    former = getattr(model, name)
    setattr(model, name, value)
    return lambda: setattr(model, name, former)


CHANGES = {
    "an attribute": lambda model, patch: patch.setattr(model, "power", 3),
    "an item of a dict": lambda model, patch: patch.setitem(model.options, "scale", 4.0),
    "an item of a list in a dict": lambda model, patch: patch.setitem(model.options, "limits", [300, 500]),
    "training": lambda model, _: model.eval().train,
    "training of a part": lambda model, _: model.dropout.eval().train,
    "the option of a part": lambda model, patch: patch.setattr(model.dropout, "p", 1.0),
    "what needs gradients": lambda model, _: model.head.bias.requires_grad_(False).requires_grad_,
    "the type of a parameter": lambda model, _: model.head.double().float,
    "the shape of a parameter": lambda model, _: exchange(model, "head", torch.nn.Linear(16, 20)),
    "a parameter that is there": lambda model, _: exchange(model, "head", torch.nn.Linear(16, 50, bias=False)),
    "the shape of a buffer": lambda model, _: exchange(model, "table", torch.randn(256, 16)),
    "the type of a buffer": lambda model, _: exchange(model, "table", model.table.double()),
    "the class of a part": lambda model, _: exchange(model, "dropout", torch.nn.ReLU()),
    "a hook": lambda model, _: model.head.register_forward_hook(lambda *given: given[2] * 2).remove,
    "a global": lambda _, patch: patch.setitem(globals(), "SCALE", 5.0),
    "a global function": lambda _, patch: patch.setitem(globals(), "scale", lambda x: x * 7.0),
    "the code of a function": lambda _, patch: patch.setattr(scale, "__code__", (lambda x: x * 9.0).__code__),
    "an attribute of the class": lambda _, patch: patch.setattr(Model, "factor", 4.0),
    "a method of torch's": lambda _, patch: patch.setattr(
        torch.nn.Linear, "forward", lambda self, x: x @ self.weight.T
    ),
    "an own method": lambda model, patch: patch.setattr(model.dropout, "forward", lambda x: x * 3),
}
"""Each with a function that changes it, and returns what undoes that, if ``patch`` does not."""


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_seen(pair, what):
    model, compiled, transform, own = pair
    length = 100 + 2 * list(CHANGES).index(what)
    before = counts(transform)[0]
    with pytest.MonkeyPatch.context() as patch:
        undo = CHANGES[what](model, patch)
        expected, found = (_try(each, model, length) for each in (own, compiled))
        if undo is not None:
            undo()
    assert type(expected) is type(found)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))
    else:  # Thunder holds parameters and buffers that the model had at first
        assert str(found) == str(expected)
    assert counts(transform)[0] == before
    train(compiled, model, tokens(length + 1))
    assert counts(transform)[0] == before + 1


def _try(compiled, model, length):
    try:
        return train(compiled, model, tokens(length))
    except (AssertionError, RuntimeError) as error:
        return error


def test_numbers_in_parameters_and_buffers_may_change(pair):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    with torch.no_grad():
        model.table.add_(1.0)
        model.head.weight.mul_(2.0)
    assert all(map(torch.equal, train(compiled, model, tokens(200)), train(own, model, tokens(200))))
    assert counts(transform)[0] == before + 1


@contextlib.contextmanager
def switched(switch, ask, value):
    """Has a switch of torch's at a value meanwhile."""
    before = ask()
    switch(value)
    try:
        yield
    finally:
        switch(before)


@pytest.mark.parametrize(
    "change",
    [
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: switched(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
        lambda: switched(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True),
        lambda: switched(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "high"),
    ],
)
def test_the_state_of_torch_is_seen(pair, change):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    with change():
        expected, found = (train(each, model, tokens(220)) for each in (own, compiled))
    assert all(map(torch.equal, found, expected))
    assert counts(transform)[0] == before


@pytest.mark.parametrize(
    "argument",
    [tokens(200).int(), tokens(400)[:, ::2], tokens(200).t().contiguous().t(), tokens(200)[0], tokens(200)[None]],
)
def test_other_arguments_are_interpreted(pair, argument):
    model, compiled, transform, own = pair
    before = counts(transform)[0]
    if argument.dim() != 2:
        with pytest.raises(Exception, match="unpack"):
            train(compiled, model, argument)
    else:
        assert all(map(torch.equal, train(compiled, model, argument), train(own, model, argument)))
    assert counts(transform)[0] == before


def test_arguments_that_vary_together(known, tmp_path):
    model, compiled, transform = known
    for number, length in enumerate((64, 96, 8)):
        weights = torch.rand(2, length, requires_grad=True)
        expected = expect(model, tmp_path, tokens(length), weights=weights)
        assert all(map(torch.equal, train(compiled, model, tokens(length), weights=weights), expected))
        assert counts(transform) == (max(0, number - 1), {})
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
    compiled, transform = compile_anew(model, tmp_path)
    for length in (64, 96):
        train(compiled, model, tokens(length))
        assert session.OUTCOMES[-1].written == 1
    expected = expect(model, tmp_path, tokens(200, 3))
    with without_interpreter():
        found = train(compiled, model, tokens(200, 3))
    assert all(map(torch.equal, found, expected))
    assert counts(transform) == (1, {})


def by_length(x):
    return x * {64: 1.0, 96: 2.0}.get(x.shape[1], 3.0)


def loops(x):
    for number in range(x.shape[1] // 32):
        x = x + number
    return x


def formats(x):
    return x * len(f"{x.shape[1]}")


def takes_a_root(x):
    return x / math.sqrt(x.shape[1])


@pytest.mark.parametrize("program", [by_length, loops, formats, takes_a_root])
def test_what_looks_at_the_length_is_interpreted_for_each(tmp_path, program):
    compiled, transform = compile_anew(program, tmp_path)
    for length in (64, 96, 65, 200, 8):
        x = torch.randn(2, length)
        assert torch.equal(compiled(x), program(x))
    replayed, reasons = counts(transform)
    assert replayed <= 1
    assert all("test_third_lengths.py" in reason for reason in reasons)
    assert sum(reasons.values()) == 3 - replayed


def returns_lengths(x):
    batch, length = x.shape
    return {"result": x + 1, "sizes": [batch, (length, "tokens")], length: 3}


def test_what_is_returned_has_plain_integers(tmp_path):
    compiled, transform = compile_anew(returns_lengths, tmp_path)
    for length in (64, 96, 65, 96):
        found = compiled(torch.ones(2, length))
        numbers = [found["sizes"][0], found["sizes"][1][0], list(found)[2]]
        assert found["sizes"] == [2, (length, "tokens")]
        assert list(map(type, numbers)) == [int, int, int]
    assert counts(transform)[0] == 0


class KeepsMasks(torch.nn.Module):
    """Stores the last length, and masks by length."""

    def __init__(self):
        super().__init__()
        self.last = 0
        self.masks = {length: torch.ones(length).cumsum(0) for length in (64, 96, 200)}

    def forward(self, x):
        self.last = x.shape[1]
        return x * self.masks[x.shape[1]] if x.shape[1] in self.masks else x + self.last


def test_a_module_that_keeps_masks_by_length(tmp_path):
    model, other = KeepsMasks(), KeepsMasks()
    compiled, transform = compile_anew(model, tmp_path)
    own = thunder.jit(other)
    for length in (64, 96, 65, 200, 96):
        x = torch.randn(2, length)
        assert torch.equal(compiled(x), own(x))
        assert model.last == other.last
    assert counts(transform)[0] == 0


class Quiet(thunder.core.transform_common.Transform):
    """A transform that could change Thunder's first traces."""

    def cache_key(self):
        return ""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        return prologue_trace, computation_trace, epilogue_trace


def test_another_transform_has_every_length_interpreted(tmp_path):
    compiled, transform = compile_anew(scale, tmp_path, jit={"transforms": [Quiet()]})
    for length in (64, 96, 200):
        compiled(torch.randn(2, length))
    assert counts(transform) == (0, {"Quiet may change Thunder's first traces": 2})


@pytest.mark.parametrize("options", [{"sizes": "static"}, {"verify": True}, {"programs": False}])
def test_nothing_is_called_again(tmp_path, options):
    compiled, transform = compile_anew(scale, tmp_path, **options)
    for length in (64, 96, 200):
        assert torch.equal(compiled(torch.ones(2, length)), torch.full((2, length), 2.0))
    assert counts(transform) == (0, {})


def test_it_goes_on_where_no_more_programs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(program_list, "MOST_KINDS", 3)
    monkeypatch.setattr(lengths, "keep_family", lambda *_: False)
    compiled, transform = compile_anew(scale, tmp_path)
    for length in (64, 96, 200, 65, 8):
        assert torch.equal(compiled(torch.ones(2, length)), torch.full((2, length), 2.0))
    assert counts(transform) == (3, {})
    assert transform.stats().programs_made == 3
