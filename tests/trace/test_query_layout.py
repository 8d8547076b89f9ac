"""Queries lie with positions first where nobody can tell, and attention, which is played, copies nothing then."""

from types import SimpleNamespace

import pytest
import thunder
import thunder.torch as ltorch
import torch
from flash_kernels import play_flash_attention
from stored_programs import compile_anew
from torch.nn.functional import scaled_dot_product_attention

from fusioncache.trace.query_layout import QUERIES, computes_each_by_itself

SIZE, HEADS = 8, 2
WIDTH = HEADS * SIZE


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


@pytest.fixture
def kernels():
    """What is played."""
    with pytest.MonkeyPatch.context() as patch, play_flash_attention(patch) as kernels:
        yield kernels


def turn(heads: torch.Tensor) -> torch.Tensor:
    half = SIZE // 2
    return torch.cat((-heads[..., half:], heads[..., :half]), -1) + heads


class Layer(torch.nn.Module):
    """A layer of attention between two linear ones, whose queries and keys a region turns, and variants of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.join = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def heads_of(self, x):
        """Returns query, key and value."""
        parts = (self.project(x) * 0.5).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        return turn(parts[0]), turn(parts[1]), parts[2]

    def attend(self, query, key, value):
        """Returns a tensor of shape (rows, heads, positions, size)."""
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        return self.join(self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2))


class Stack(Layer):
    """Two layers of the same weights."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        return super().forward(torch.tanh(super().forward(x)))


class Copied(Layer):
    """Asks for copies, as models of Hugging Face's do."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        result = self.attend(*self.heads_of(x)).transpose(1, 2).contiguous()
        return self.join(result.reshape(*x.shape[:2], -1).contiguous())


class Scaled(Layer):
    """The gradient of a number for each of a query's elements is a sum of the query's gradients."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(SIZE))

    def heads_of(self, x):
        """Returns query, key and value."""
        query, key, value = super().heads_of(x)
        return query * self.scale, key, value


MOVES = {each.__name__: each for each in (Layer, Copied)}
"""What lies with positions first, and then is copied nowhere."""


class Normalized(Layer):
    """Its region adds up elements of a query."""

    def heads_of(self, x):
        """Returns query, key and value."""
        query, key, value = super().heads_of(x)
        return query * query.square().mean(-1, keepdim=True).rsqrt(), key, value


class Largest(Layer):
    """Its region finds the largest of a query's elements."""

    def heads_of(self, x):
        """Returns query, key and value."""
        query, key, value = super().heads_of(x)
        return query - query.amax(-1, keepdim=True), key, value


class QueryReturned(Layer):
    """Somebody has the query."""

    def forward(self, x):
        """Returns two tensors."""
        query, key, value = self.heads_of(x)
        return self.join(self.attend(query, key, value).transpose(1, 2).flatten(2)), query


class QueryUsedTwice(Layer):
    """Something else computes with the query."""

    def forward(self, x):
        """Returns two tensors."""
        query, key, value = self.heads_of(x)
        return self.join(self.attend(query, key, value).transpose(1, 2).flatten(2)), query @ value.transpose(2, 3)


class QueryIsKey(Layer):
    """A query is compared with itself."""

    def attend(self, query, key, value):
        """Returns a tensor of shape (rows, heads, positions, size)."""
        return super().attend(query, query, value)


class ResultReturned(Layer):
    """Somebody has the result as attention laid it out."""

    def forward(self, x):
        """Returns two tensors."""
        result = self.attend(*self.heads_of(x))
        return self.join(result.transpose(1, 2).flatten(2)), result


class JoinedReturned(Layer):
    """Somebody has what was a copy of the result, and may write into it."""

    def forward(self, x):
        """Returns two tensors."""
        joined = self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2)
        return self.join(joined), joined


class JoinedAdded(Layer):
    """A region has what was a copy of the result."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        joined = self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2)
        return self.join(joined) + joined.sin()


class HeadsKept(Layer):
    """Its result is multiplied with heads first."""

    def forward(self, x):
        """Returns a tensor of shape (rows, heads, positions, size)."""
        return self.attend(*self.heads_of(x)) @ self.join.weight[:SIZE, :SIZE]


class HeadsSplit(Layer):
    """Its result is multiplied with heads that are not joined."""

    def forward(self, x):
        """Returns a tensor of shape (rows, positions, heads, 2, size // 2)."""
        result = self.attend(*self.heads_of(x)).transpose(1, 2)
        return result.reshape(*x.shape[:2], HEADS, 2, SIZE // 2) @ self.join.weight[: SIZE // 2, : SIZE // 2]


class SwappedOtherwise(Layer):
    """Heads and sizes change places."""

    def forward(self, x):
        """Returns a tensor."""
        return self.attend(*self.heads_of(x)).permute(0, 2, 3, 1).flatten(2) @ self.join.weight


class Writing(Layer):
    """Something is written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        self.calls.add_(1.0)
        return super().forward(x)


class NotTurned(Layer):
    """No region makes its query."""

    def heads_of(self, x):
        """Returns query, key and value."""
        return self.project(x).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)


STAYS = {
    each.__name__: each
    for each in (
        Normalized,
        Largest,
        QueryReturned,
        QueryUsedTwice,
        QueryIsKey,
        ResultReturned,
        JoinedReturned,
        JoinedAdded,
        HeadsKept,
        HeadsSplit,
        SwappedOtherwise,
        Writing,
        NotTurned,
    )
}
"""What stays as it lies: each differs from a layer by one thing."""


def take_step(call, model, length=6, width=WIDTH):
    torch.manual_seed(length)
    model.zero_grad(set_to_none=True)
    x = torch.randn(2, length, width, requires_grad=True)
    outputs = call(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(each.square().sum() for each in outputs).backward()
    return [*(each.detach() for each in outputs), x.grad, *(each.grad for each in model.parameters())]


def step_in_both_ways(directory, model, length=6):
    """Returns what a step gives with and without, which must be the same bits, laid out alike, and both transforms."""
    found = []
    for lean in ("auto", "thunder"):
        compiled, transform = compile_anew(model, directory / lean, lean=lean)
        found.append((take_step(compiled, model, length), compiled, transform))
    (results, compiled, transform), (expected, plain, other) = found
    assert len(results) == len(expected)
    for one, two in zip(results, expected, strict=True):
        assert torch.equal(one, two) and one.stride() == two.stride()
    assert not transform.stats().bypasses and not other.stats().bypasses
    return compiled, transform, plain


def names_of(trace):
    return [symbol.sym.name for symbol in trace[-1].bound_symbols]


@pytest.mark.parametrize("kind", MOVES)
def test_attention_copies_nothing(tmp_path, kernels, kind):
    model = MOVES[kind]()
    compiled, transform, plain = step_in_both_ways(tmp_path, model)
    assert transform.stats().taken_out[QUERIES] == 1
    kernels.copies = 0
    take_step(plain, model)
    assert kernels.copies == 1  # the result, in backward
    kernels.copies = 0
    take_step(compiled, model)
    assert kernels.copies == 0
    assert "contiguous" not in names_of(thunder.last_backward_traces(compiled))
    for one, other in zip(take_step(compiled, model), take_step(model, model), strict=True):
        torch.testing.assert_close(one, other)


def test_layers_are_one_template_as_before(tmp_path, kernels):
    _, transform, _ = step_in_both_ways(tmp_path, Stack())
    assert transform.stats().taken_out[QUERIES] == 2
    turned = [call for call in transform.calls() if "prims.stride_order" in str(call.template)]
    assert len(turned) == 1


@pytest.mark.parametrize("kind", STAYS)
def test_what_may_be_told_stays_as_it_lies(tmp_path, kernels, kind):
    model = STAYS[kind]()
    compiled, transform = compile_anew(model, tmp_path)
    for one, other in zip(take_step(compiled, model), take_step(model, model), strict=True):
        torch.testing.assert_close(one, other)
    assert QUERIES not in transform.stats().taken_out


def test_gradients_that_are_added_up_lie_as_before(tmp_path, kernels):
    """The order in which a kernel adds up may depend on how its arguments lie."""
    compiled, transform, _ = step_in_both_ways(tmp_path, Scaled())
    assert transform.stats().taken_out[QUERIES] == 1
    assert names_of(thunder.last_backward_traces(compiled)).count("contiguous") == 1


@pytest.mark.parametrize("size", [(1, WIDTH), (6, 4)], ids=["one position", "heads that are padded"])
@torch.no_grad()
def test_what_has_one_order_or_is_copied_anyway_stays(tmp_path, kernels, size):
    def attend(x):
        heads = (x + x).view(1, size[0], -1, size[1] // 1).transpose(1, 2) if size[1] == 4 else x + x
        heads = heads.view(1, -1, size[0], 4 if size[1] == 4 else SIZE) * 2.0
        return scaled_dot_product_attention(heads, x.view_as(heads), x.view_as(heads)).transpose(1, 2).flatten(2) @ w

    w = torch.randn(WIDTH, 3)
    compiled, transform = compile_anew(attend, tmp_path)
    x = torch.randn(1, size[0], WIDTH)
    torch.testing.assert_close(compiled(x), attend(x))
    assert QUERIES not in transform.stats().taken_out


@torch.no_grad()
def test_without_gradients_as_well(tmp_path, kernels):
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path)
    x = torch.randn(2, 6, WIDTH)
    torch.testing.assert_close(compiled(x), model(x))
    assert transform.stats().taken_out[QUERIES] == 1


@pytest.mark.parametrize(("function", "alone"), [("sin", True), ("cumsum", False), ("rand_like", False)])
def test_elements_by_themselves(function, alone):
    def compute(x):
        return ltorch.cumsum(x, 0) if function == "cumsum" else getattr(ltorch, function)(x)

    trace = thunder.trace()(compute, torch.ones(4))
    region = SimpleNamespace(subsymbols=[each for each in trace.bound_symbols if each.sym.name == function])
    assert region.subsymbols and computes_each_by_itself(region) is alone


def test_a_failure_leaves_the_trace_as_it_is(tmp_path, kernels, monkeypatch):
    def fail(*_):
        raise RuntimeError("no order")

    monkeypatch.setattr("fusioncache.trace.query_layout.find_queries", fail)
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path)
    with pytest.warns(RuntimeWarning, match="the order of queries stays as Thunder made it"):
        results = take_step(compiled, model)
    for one, other in zip(results, take_step(model, model), strict=True):
        torch.testing.assert_close(one, other)
    assert transform.stats().bypasses == {"failed: RuntimeError": 1}
