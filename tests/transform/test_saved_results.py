"""A result of attention is saved once for backward, as what is multiplied; attention, which is played, copies none."""

import pytest
import thunder
import torch
from flash_kernels import play_flash_attention
from stored_programs import compile_anew, without_interpreter
from torch.nn.functional import scaled_dot_product_attention

from fusioncache.accelerators.programs.definitions import ForeignRuns
from fusioncache.accelerators.steps.views import RESULTS

SIZE, HEADS = 8, 2
WIDTH = HEADS * SIZE


def turn(heads):
    half = SIZE // 2
    return torch.cat((-heads[..., half:], heads[..., :half]), -1) + heads


def join_heads(result):
    return result.transpose(1, 2).flatten(2)


class Layer(torch.nn.Module):
    """A layer of attention between two linear ones, whose queries and keys a region turns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.join = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def heads_of(self, x):
        """Returns query, key and value."""
        parts = (self.project(x) * 0.5).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        return turn(parts[0]), turn(parts[1]), parts[2]

    def finish(self, result):
        """Returns the layer's result for that of attention, of shape (rows, heads, positions, size)."""
        return self.join(join_heads(result))

    def forward(self, x):
        return self.finish(scaled_dot_product_attention(*self.heads_of(x), is_causal=True))


class Stack(Layer):
    """Two layers of the same weights."""

    def forward(self, x):
        return super().forward(torch.tanh(super().forward(x)))


class Scaled(Layer):
    """The gradient of a number for each of a query's elements is a sum of the query's gradients."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(SIZE))

    def heads_of(self, x):
        query, key, value = super().heads_of(x)
        return query * self.scale, key, value


class ResultReturned(Layer):
    """A model that also returns the result as attention laid it out."""

    def finish(self, result):
        return self.join(join_heads(result)), result


class JoinedReturned(Layer):
    """A model that also returns what was a copy of the result: its caller may write into it."""

    def finish(self, result):
        joined = join_heads(result)
        return self.join(joined), joined


class JoinedAdded(Layer):
    """A region has what was a copy of the result."""

    def finish(self, result):
        joined = join_heads(result)
        return self.join(joined) + joined.sin()


class HeadsKept(Layer):
    """Its result is multiplied with heads first."""

    def finish(self, result):
        return result @ self.join.weight[:SIZE, :SIZE]


class HeadsSplit(Layer):
    """Its result is multiplied with heads that are not joined."""

    def finish(self, result):
        result = result.transpose(1, 2)
        return result.reshape(*result.shape[:2], HEADS, 2, SIZE // 2) @ self.join.weight[: SIZE // 2, : SIZE // 2]


class SwappedOtherwise(Layer):
    """Heads and sizes change places."""

    def finish(self, result):
        return result.permute(0, 2, 3, 1).flatten(2) @ self.join.weight


class Writing(Layer):
    """Something is written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1.0)
        return super().forward(x)


class Frozen(Layer):
    """What is multiplied is not saved for a weight's gradient."""

    def __init__(self):
        super().__init__()
        self.join.weight.requires_grad_(False)


class FrozenReturned(Frozen, JoinedReturned):
    """A model that also returns what is multiplied: its caller may write into it, so it is not saved."""


class RowsLater(Layer):
    """Positions come before rows, as in models that have their sequences first, until attention."""

    def __init__(self):
        super().__init__()
        self.join = torch.nn.Linear(WIDTH, WIDTH)

    def heads_of(self, x):
        parts = self.project(x.transpose(0, 1)).view(x.shape[1], x.shape[0], 3, HEADS, SIZE).permute(2, 1, 3, 0, 4)
        return parts[0] * 1.1, parts[1] * 1.2, parts[2]


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


@pytest.fixture(autouse=True)
def kernels():
    """What is played."""
    with pytest.MonkeyPatch.context() as patch, play_flash_attention(patch) as kernels:
        yield kernels


ONCE = (Layer, Scaled, Frozen, RowsLater)
"""What is saved once."""
TWICE = (
    ResultReturned, JoinedReturned, JoinedAdded, HeadsKept, HeadsSplit, SwappedOtherwise, Writing, FrozenReturned,
)  # fmt: skip
"""What is saved as before: each differs from a layer by one thing."""


def take_step(call, model, length=6):
    """Returns outputs and gradients, also one of an input that is no leaf: it lies as a program gives it."""
    torch.manual_seed(length)
    x = torch.randn(2, length, WIDTH, requires_grad=True).sin()
    outputs = call(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [x, *(each for each in model.parameters() if each.requires_grad)]
    return [*outputs, *torch.autograd.grad(sum(each.square().sum() for each in outputs), wanted)]


def list_saved(compiled):
    return [proxy.name for proxy in thunder.last_traces(compiled)[-1].bound_symbols[-1].args[1][0]]


def compile_both(model, directory):
    return [compile_anew(model, directory / lean, lean=lean) for lean in ("auto", "thunder")]


@pytest.mark.parametrize("kind", [*ONCE, *TWICE])
def test_results_and_gradients_have_the_same_bits_and_strides(tmp_path, kernels, kind):
    model = kind()
    (compiled, transform), (plain, _) = compile_both(model, tmp_path)
    found, copies = take_step(compiled, model), kernels.copies
    expected = take_step(plain, model)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    torch.testing.assert_close(found, take_step(model, model))
    assert transform.stats().taken_out.get(RESULTS, 0) == (kind in ONCE)
    assert not transform.stats().bypasses
    if kind in (Layer, Scaled, Frozen):
        assert (copies, kernels.copies) == (0, 1)
    is_one_less = len(list_saved(plain)) - len(list_saved(compiled)) == 1
    assert is_one_less is (kind in ONCE and kind is not Frozen)


@pytest.mark.parametrize("options", [{}, {"recompute": "residual"}], ids=str)
def test_several_layers_and_what_else_is_saved_otherwise(tmp_path, kernels, options):
    model = Stack()
    compiled, transform = compile_anew(model, tmp_path, **options)
    torch.testing.assert_close(take_step(compiled, model), take_step(model, model))
    assert transform.stats().taken_out[RESULTS] == 2 and not kernels.copies


@pytest.mark.parametrize("kind", [JoinedReturned, FrozenReturned, Layer])
def test_what_is_written_between_forward_and_backward_is_noticed_as_before(tmp_path, kind):
    model = kind()
    both = compile_both(model, tmp_path)
    for silently in (False, True):
        ours, plain = (write_between(compiled, silently) for compiled, _ in both)
        assert torch.equal(ours, plain) if isinstance(plain, torch.Tensor) else ours == plain


def write_between(compiled, silently):
    """Returns the gradient of the input, or what is raised."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, WIDTH, requires_grad=True)
    outputs = compiled(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum(each.square().sum() for each in outputs)
    (outputs[-1].data if silently else outputs[-1].detach()).mul_(2.0)
    try:
        return torch.autograd.grad(total, x)[0]
    except RuntimeError as error:
        return str(error)[:60]


@pytest.fixture
def kept(monkeypatch):
    """Programs are kept although what plays the kernels is nobody's that is known."""
    monkeypatch.setattr(ForeignRuns, "check", lambda self: None)


def test_lengths_are_filled_in_and_a_later_process_loads_the_same(tmp_path, kernels, kept):
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path)
    for length in (6, 8, 10, 12):
        torch.testing.assert_close(take_step(compiled, model, length), take_step(model, model, length))
    assert (thunder.cache_misses(compiled), transform.stats().programs_filled) == (2, 2)
    later, transform = compile_anew(model, tmp_path)
    with without_interpreter():
        found = take_step(later, model)
    assert all(map(torch.equal, found, take_step(compiled, model)))
    assert transform.stats().programs_loaded == 1 and not kernels.copies


def test_thunders_transform_for_graphs_captures_what_is_saved_once(tmp_path, monkeypatch):
    """It looks for the collection of saved tensors at a place of its own. Parts are not captured but run."""
    from thunder.transforms.cudagraph import CUDAGraphRunner, CUDAGraphTransform

    monkeypatch.setattr(
        CUDAGraphRunner, "call_cuda_graph", lambda runner, name, *args: runner.python_callables[name][0](*args)
    )
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path, jit={"transforms": [CUDAGraphTransform()]}, programs=False)
    found = take_step(compiled, model)
    assert transform.stats().taken_out[RESULTS] == 1
    assert "CUDAGraph" in str(thunder.last_backward_traces(compiled)[-1])
    for one, other in zip(found, take_step(compile_anew(model, tmp_path, lean="thunder")[0], model), strict=True):
        assert torch.equal(one, other)
