"""A mask of attention is prepared once for all layers, forward and backward, and no gradient of it is computed."""

import pytest
import thunder
import torch
from dispatched import Operations
from models import compile_plain, compile_with
from thunder.executors import sdpaex, torchex

from fusioncache.accelerators.steps import masks as own
from fusioncache.accelerators.steps.lean_steps import simplify
from fusioncache.accelerators.steps.masks import MASKS, prepare_mask
from fusioncache.transform.rewrite import derive

HEADS, KEYS, SIZE = 2, 5, 8


ASKED = []
"""Whether each backward was asked for the gradient of the mask."""


def accepts(*tensors):
    """True if the kernel accepts the strides of these tensors."""
    return all(each.stride(-1) == 1 for each in tensors)


def emulate_forward(query, key, value, bias, saves, dropout=0.0, causal=False, *, scale=None):
    """Replaces the kernel; also returns the mask, the options, and whether the kernel accepts all strides."""
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=scale)
    is_right = accepts(query, key, value, bias) and all(stride % 8 == 0 for stride in bias.stride()[:-1])
    return found, bias.float(), torch.tensor([saves, dropout, causal]), torch.tensor(int(is_right))


def emulate_backward(gradient, query, key, value, bias, *others, scale=None):
    """Replaces the kernel for backward; its results depend on all arguments."""
    *_, dropout, wanted = others[:6]
    ASKED.append(wanted[3])
    options = dropout + 2 * (others[6] if len(others) > 6 else False) + 4 * scale + 8 * accepts(query, key, value, bias)
    changed = [query * bias.float().exp().mean() + gradient, key * options, value * 3]
    return *changed, torch.ones_like(bias) if wanted[3] else None


@pytest.fixture(name="kernels", autouse=True)
def _kernels():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_efficient_attention", emulate_forward, "CPU")
    library.impl("_scaled_dot_product_efficient_attention_backward", emulate_backward, "CPU")
    yield
    library._destroy()


def attend(query, key, mask):
    return sdpaex.sdpea_gradfwd(query, key, key, mask, 0.25, True, scale=0.5)


def differentiate(query, key, mask, gradient, position):
    """Passes on the given values for those that the kernel for forward would have saved."""
    return sdpaex.sdpea_bwd(gradient, query, key, key, mask, query, query, position, position, 0.25, True, scale=0.5)


def select(masks, position):
    return torchex.index_select(masks, 2, position)


def overwrite(cache):
    return torchex.copy_(torchex.mul(cache, 2.0), cache, grad_enabled=False)


def two_layers(x, cache, masks, position):
    mask = select(masks, position)
    first = attend(x, cache, mask)
    return *first, *attend(torchex.add(first[0], x), overwrite(cache), mask)


def two_layers_without_writes(x, cache, masks, position):
    mask = torchex.unsqueeze(torchex.squeeze(select(masks, position), (0,)), 0)
    first = attend(x, cache, mask)
    return *first, *attend(torchex.add(first[0], x), cache, mask)


def of_a_given_mask(x, cache, masks, position):
    return *attend(x, cache, masks), *attend(x, cache, masks)


def backward_of_two_layers(x, cache, masks, position):
    mask = select(masks, position)
    first = differentiate(x, cache, mask, x, position)
    return *first[:3], *differentiate(x, cache, mask, first[0], position)[:3]


def of_two_numbers_of_heads(x, cache, masks, position):
    mask = select(masks, position)
    narrow = [torchex.slice_prim_impl(each, (0, 0, 0, 0), (1, 1, *each.shape[2:])) for each in (x, cache)]
    return *attend(*narrow, mask), *attend(x, cache, mask), *attend(x, cache, mask)


def make_inputs(queries=1, heads=1):
    torch.manual_seed(0)
    # The kernel requires a last stride of one, which these do not have.
    x, cache = (torch.randn(1, HEADS, SIZE, rows, dtype=torch.bfloat16).mT for rows in (queries, KEYS))
    masks = torch.ones(KEYS, KEYS, dtype=torch.bool).tril().expand(1, heads, KEYS, KEYS).contiguous()
    return x, cache, masks, torch.arange(3 - queries, 3)


def trace_of(compute, *shape):
    trace = thunder.trace(inline_trace=False, rename_proxies=False)(compute, *make_inputs(*shape))
    return derive(trace, trace.bound_symbols, "Made by a test")


SHARED = {
    two_layers: [(1,), (3,), (1, 2)],
    two_layers_without_writes: [(1,), (3,)],
    of_a_given_mask: [(KEYS,)],
    of_two_numbers_of_heads: [(3,)],
    backward_of_two_layers: [(1,), (3,), (1, 2)],
}


@pytest.mark.parametrize(
    ("compute", "shape"), [(compute, shape) for compute, shapes in SHARED.items() for shape in shapes]
)
def test_a_mask_is_prepared_once_and_the_kernel_is_given_the_same(compute, shape):
    trace = trace_of(compute, *shape)
    leaner = simplify(trace)
    lean = derive(trace, leaner.symbols, "Without")
    assert leaner.taken[MASKS] == 1
    text = str(lean)
    assert text.count("= prepare_mask(") == 1
    assert text.count("= attend_with_mask(") + text.count("= attend_backward_with_mask(") == 2
    counts, results = [], []
    ASKED.clear()
    for each in (trace, lean):
        inputs = make_inputs(*shape)
        with Operations() as counted:
            results.append([*each.python_callable()(*inputs), inputs[1]])
        counts.append(sum(number for name, number in counted.names.items() if name.startswith("aten.masked_fill")))
    assert counts[0] - counts[1] == 1
    assert all(map(torch.equal, *results))
    assert ASKED in ([], [True, True, False, False])


def one_layer(x, cache, masks, position):
    return attend(x, cache, select(masks, position))


def of_a_view(x, cache, masks, position):
    mask = torchex.unsqueeze(torchex.unsqueeze(torchex.reshape(select(masks, position), (KEYS,)), 0), 0)
    mask = torchex.reshape(mask, (1, 1, 1, KEYS))
    return *attend(x, cache, mask), *attend(x, overwrite(cache), mask)


def that_is_written(x, cache, masks, position):
    mask = select(masks, position)
    first = attend(x, cache, mask)
    other = torchex.index_select(masks, 2, torchex.add(position, 1))
    torchex.copy_(other, torchex.reshape(mask, (1, 1, 1, KEYS)), grad_enabled=False)
    return *first, *attend(x, cache, mask)


def of_numbers(x, cache, masks, position):
    mask = torchex.index_select(torchex.to(masks, dtype=torch.bfloat16), 2, position)
    return *attend(x, cache, mask), *attend(x, cache, mask)


def of_two_dtypes(x, cache, masks, position):
    wide = [torchex.to(each, dtype=torch.float32) for each in (x, cache)]
    return *attend(x, cache, mask := select(masks, position)), *attend(*wide, mask)


def with_a_used_gradient(x, cache, masks, position):
    mask = select(masks, position)
    return *differentiate(x, cache, mask, x, position), *differentiate(x, cache, mask, x, position)


LEFT = {
    one_layer: (),
    of_a_view: (),
    that_is_written: (),
    of_numbers: (),
    of_two_dtypes: (),
    with_a_used_gradient: (),
    two_layers: (3, 2),
}
"""Programs that stay, with their numbers of queries and of heads. Two heads with three rows each would live long."""


@pytest.mark.parametrize("compute", LEFT, ids=lambda each: each.__name__)
def test_what_has_to_stay_stays(compute):
    assert MASKS not in simplify(trace_of(compute, *LEFT[compute])).taken


def test_where_thunder_has_another_function_nothing_is_done(monkeypatch):
    monkeypatch.setattr(own, "is_known_whole", lambda capability: False)
    assert MASKS not in simplify(trace_of(two_layers)).taken


class Masked(torch.nn.Module):
    """Two layers of attention with the mask that Hugging Face's models make of padding, and no other operation."""

    def __init__(self):
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(64, 192, bias=False) for _ in range(2))

    def forward(self, x, padding):
        length = x.shape[1]
        places = torch.arange(length, device=x.device)
        mask = (places <= places[:, None])[None, None] & padding[:, None, None, :]
        for projection in self.projections:
            parts = [each.reshape(2, length, 4, 16).transpose(1, 2) for each in projection(x).split(64, -1)]
            found = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
            x = x + found.transpose(1, 2).reshape(2, length, 64)
        return x


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 65, 200, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_training_has_the_bits_of_thunders_programs(length, dtype):
    """A length of 16 is the size of a head, for which Thunder prepares masks otherwise."""
    torch.manual_seed(0)
    x = torch.randn(2, length, 64, device="cuda", dtype=dtype, requires_grad=True)
    padding = torch.ones(2, length, dtype=torch.bool, device="cuda")
    padding[1, -5:] = False
    found, peaks = [], []
    model = Masked().to("cuda", dtype)
    compiled, transform = compile_with(model, "nvfuser", programs=False)
    torch.use_deterministic_algorithms(True)  # otherwise the kernel for backward adds in any order
    try:
        for each in (compile_plain(model), compiled):
            for _ in range(2):
                torch.cuda.reset_peak_memory_stats()
                grads = torch.autograd.grad(each(x, padding).square().sum(), [x, *model.parameters()])
            peaks.append(torch.cuda.max_memory_allocated())
            found.append(grads)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, *found))
    assert transform.stats().taken_out[MASKS] == 2  # forward and backward
    assert length < 200 or peaks[1] < peaks[0]  # of short lengths the masks are too small to matter


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 4])
def test_the_prepared_mask_has_thunders_numbers(heads):
    mask = torch.rand(2, heads, 3, 13, device="cuda") < 0.5
    query = torch.empty(2, 4, 3, 8, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(prepare_mask(mask, query), sdpaex._attention_mask_memory_efficient_helper(mask, query))
