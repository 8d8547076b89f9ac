"""Operations of Dynamo's graphs that Thunder lacks are replaced by others with the same bits, or stay as they are."""

import pytest
import torch
from behind_dynamo import compile_behind_dynamo
from torch.utils.checkpoint import checkpoint

from fusioncache.accelerators.splitting import replace_operations

BIAS, LEFT, RIGHT = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((5,), (3, 4), (4, 5)))
ROWS = LEFT.repeat(2, 1, 1)
NUMBERS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


def capture(function, *arguments, replaces=True, **options):
    """Returns Dynamo's graph of a function, after the replacements."""
    found = []
    torch._dynamo.reset()
    torch.compile(function, backend=lambda graph, given: found.append(graph) or graph.forward, **options)(*arguments)
    (graph,) = found
    if replaces:
        replace_operations(graph)
    graph.graph.lint()
    return graph


def list_targets(graph):
    return [getattr(node.target, "__name__", node.target) for node in graph.graph.nodes if node.op.startswith("call")]


REPLACED = [
    (lambda a, b, c: torch.addmm(a, b, c), (BIAS, LEFT, RIGHT), ["project"]),
    (lambda x: x.new_ones((2, 3)), (LEFT,), ["ones"]),
    (lambda x: x.new_ones(2, 3, dtype=torch.int64), (LEFT.bfloat16(),), ["ones"]),
    (lambda x: x.new_zeros(x.shape, device="cpu"), (LEFT.half(),), ["zeros"]),
    (lambda x: torch.diff(x), (NUMBERS,), ["getitem", "getitem", "sub"]),
    (lambda x: torch.diff(x, prepend=x[:, :1] - 1, dim=-1), (NUMBERS,), ["cat", "getitem", "getitem", "sub"]),
    (lambda x: torch.diff(x, prepend=x[:, :1], append=x), (NUMBERS,), ["cat", "getitem", "getitem", "sub"]),
    (lambda x: torch.min(x, x.flip(0)), (NUMBERS,), ["minimum"]),
    (lambda x: x[torch.arange(2)[:, None], torch.arange(3) - 1], (NUMBERS,), ["pick"]),
    (lambda x: (x > 2)[x.clamp(0, 1), x.clamp(0, 3)], (NUMBERS,), ["pick"]),
    (lambda b, x, w: torch.addmm(b, x.view(-1, 4), w).view(2, 3, 5), (BIAS, ROWS, RIGHT), ["project"]),
    (lambda x: (x.bool(), x.int(), x.half(), x.bfloat16()), (LEFT,), ["to"] * 4),
]


@pytest.mark.parametrize(("function", "arguments", "expected"), REPLACED)
def test_each_is_replaced_with_the_same_bits_in_one_part(function, arguments, expected):
    graph = capture(function, *arguments)
    targets = list_targets(graph)
    assert [each for each in targets if each in expected][-len(expected) :] == expected
    own, _ = compile_behind_dynamo(function)
    results, wanted = own(*arguments), function(*arguments)
    torch.testing.assert_close(results, wanted, rtol=0, atol=0)
    (info,) = own._backend.subgraph_infos
    assert len(info.thunder_compiled_fns) == 1 and not info.split_reasons


def turn_rows(bias, x, weight):
    rows = (x * 2).view(-1, 4)
    rows.transpose_(0, 1)
    return torch.addmm(bias, rows, weight).view(2, 2, 5)


def write_into_result(bias, x, weight):
    flat = torch.addmm(bias, x.view(-1, 4), weight)
    result = flat.view(2, 2, 5)
    flat.add_(1)
    return result


def write_by_operator(bias, x, weight):
    flat = torch.addmm(bias, x.view(-1, 4), weight)
    flat[0] = 1
    return flat.view(2, 2, 5)


def write_out(bias, x, weight):
    flat = torch.addmm(bias, x.view(-1, 4), weight)
    torch.mul(flat, 2, out=flat)
    return flat.view(2, 2, 5)


def write_by_option(bias, x, weight):
    rows = (x * 2).view(-1, 4)
    torch.nn.functional.relu(rows, inplace=True)
    return torch.addmm(bias, rows, weight).view(2, 2, 5)


def write_by_position(bias, x, weight):
    rows = (x * 2).view(-1, 4)
    torch.nn.functional.elu(rows, 1.0, True)
    return torch.addmm(bias, rows, weight).view(2, 2, 5)


def write_by_overload(bias, x, weight):
    rows = (x * 2).view(-1, 4)
    torch.ops.aten.relu_.default(rows)
    return torch.addmm(bias, rows, weight).view(2, 2, 5)


WRITING = (
    *(turn_rows, write_into_result, write_by_operator, write_out),
    *(write_by_option, write_by_position, write_by_overload),
)
STAY = [
    *((each, (BIAS, torch.ones(2, 2, 4), RIGHT)) for each in WRITING),
    (lambda a, b, c: torch.addmm(a, b, c, beta=2.0), (BIAS, LEFT, RIGHT)),
    (lambda a, b, c: torch.addmm(a, b, c, alpha=2), (BIAS, LEFT, RIGHT)),
    (lambda a, b, c: torch.addmm(a, b, c), (BIAS[:1], LEFT, RIGHT)),
    (lambda a, b, c: torch.addmm(a, b, c), (BIAS.expand(3, 5), LEFT, RIGHT)),
    (lambda a, b, c: torch.addmm(a, b, c), tuple(each.long() for each in (BIAS, LEFT, RIGHT))),
    (lambda x: x.new_ones(2, 3, requires_grad=True) * x[0, 0], (LEFT,)),
    (lambda x: torch.vmap(lambda row: row + row.new_ones(()))(x), (LEFT,)),
    (lambda x: torch.diff(x), (LEFT,)),
    (lambda x: torch.diff(x > 2), (NUMBERS,)),
    (lambda x: torch.diff(x, n=2), (NUMBERS,)),
    (lambda x: torch.diff(x, dim=0), (NUMBERS,)),
    (lambda x: torch.min(x, x.flip(0)), (LEFT,)),
    (lambda x: x[torch.arange(2), torch.arange(2)], (LEFT,)),
    (lambda x: x[x % 2], (NUMBERS,)),
    (lambda x: x[..., None][x % 2, x % 4], (NUMBERS,)),
    (lambda x: x[x > 2], (NUMBERS,)),
    (lambda x: x[0, 1], (NUMBERS,)),
    (lambda x: x[torch.tensor(0), torch.tensor(1)], (NUMBERS,)),
    (lambda x: x[x % 2, x % 4].add_(1), (NUMBERS,)),
    (lambda x: x.int(), (NUMBERS.to(torch.uint64),)),
    (lambda x: x.bfloat16(), (NUMBERS.to(torch.uint8).view(torch.float8_e8m0fnu),)),
    (lambda x: x.new_zeros(3, dtype=torch.uint64), (LEFT,)),
    (lambda a, b, c: torch.addmm(a, b, c), (BIAS, LEFT.t().contiguous().t(), RIGHT)),
    (lambda a, b, c: torch.addmm(a, b, c), (BIAS, LEFT, RIGHT.t().contiguous().t())),
    (lambda x: x[x[0] % 2, :], (NUMBERS,)),
    (lambda x: torch.min(x), (NUMBERS,)),
    (lambda x: torch.min(x, 1).values, (NUMBERS,)),
    (lambda x, y: torch.min(x, x, out=y), (NUMBERS, NUMBERS.clone())),
    (lambda x: x.int(memory_format=torch.contiguous_format), (LEFT,)),
]


@pytest.mark.parametrize(("function", "arguments"), STAY)
def test_others_stay(function, arguments):
    before, after = (list_targets(capture(function, *arguments, replaces=each)) for each in (False, True))
    assert before == after


class Layer(torch.nn.Module):
    """A layer as Hugging Face's GPT-2 has it: its weight is transposed, and its shape a ``torch.Size``."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(RIGHT.clone()), torch.nn.Parameter(BIAS.clone())

    def forward(self, x):
        shape = torch.Size((*x.size()[:-1], 5))
        return torch.addmm(self.bias, x.view(-1, 4), self.weight).view(shape)


def train(model, call, x, autocast=False):
    model.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = call(x)
    result.float().square().sum().backward()
    assert model.weight.grad.is_contiguous()
    return result, model.bias.grad, model.weight.grad, x.grad


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_is_one_part_at_each_length_with_torchs_bits(autocast):
    model = Layer()
    own, _ = compile_behind_dynamo(model)
    for length in (3, 5, 7, 8):
        x = torch.randn(2, length, 4)
        ours, expected = (train(model, each, x, autocast) for each in (own, model))
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    assert [len(each.thunder_compiled_fns) for each in own._backend.subgraph_infos] == [1, 1]
    assert not any(each.split_reasons for each in own._backend.subgraph_infos)


def test_a_size_stays_where_it_is_no_argument_of_a_method():
    def call(x):
        shape = torch.Size((x.shape[0], 5))
        return x.new_zeros(shape) + shape.numel()

    graph = capture(call, LEFT, dynamic=True)
    assert torch.equal(call(LEFT), torch.zeros(3, 5) + 15) and "zeros" in list_targets(graph)


@pytest.mark.parametrize("is_nested", [False, True])
def test_graphs_in_graphs_are_changed_and_those_in_these_stay(is_nested):
    model = Layer()

    def call(x):
        return checkpoint(call_within if is_nested else model, x, use_reentrant=False)

    def call_within(x):
        return checkpoint(model, x, use_reentrant=False).tanh()

    own, _ = compile_behind_dynamo(call)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(train(model, own, x), train(model, call, x))
    assert [bool(each.split_reasons) for each in own._backend.subgraph_infos] == [is_nested]


@pytest.mark.gpu
@pytest.mark.parametrize("has_mask", [False, True])
def test_on_a_gpu_gpt2_has_torchs_gradients(has_mask):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 128}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout, use_cache=False)).cuda()

    def compute_logits(tokens):
        return model(tokens, attention_mask=torch.ones_like(tokens) if has_mask else None).logits

    own, _ = compile_behind_dynamo(compute_logits, backend="auto")
    for length in (64, 96, 65, 65):
        tokens, found = torch.randint(0, 100, (3, length), device="cuda"), []
        for call in (own, compute_logits):
            model.zero_grad()
            call(tokens).square().mean().backward()
            found.append([each.grad for each in model.parameters()])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
    assert not any(each.split_reasons for each in own._backend.subgraph_infos)


def test_a_stored_program_is_loaded_only_where_the_accelerator_is_used_alike(tmp_path, monkeypatch):
    model, counts = Layer(), []
    for names in ("programs,tracing,splitting", "programs,tracing", "programs,tracing,splitting"):
        monkeypatch.setenv("FUSIONCACHE_ACCELERATORS", names)
        own, transform = compile_behind_dynamo(model, store=tmp_path)
        own(torch.ones(2, 3, 4)).sum().backward()
        assert [bool(each.split_reasons) for each in own._backend.subgraph_infos] == ["splitting" not in names]
        counts.append((transform.stats().programs_made, transform.stats().programs_loaded))
    whole, cut, again = counts
    assert whole == (1, 0) and cut[0] > 0 and cut[1] == 0 and again == (0, 1)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [((3, 0), (0, 5)), ((3, 4), (4, 0)), ((0, 4), (4, 5)), ((1, 1), (1, 1))]
)
def test_layers_of_odd_sizes_have_torchs_gradients(inputs, outputs):
    own, _ = compile_behind_dynamo(lambda a, b, c: torch.addmm(a, b, c))
    given = [torch.randn(shape, requires_grad=True) for shape in (outputs[1:], inputs, outputs)]
    found = []
    for call in (own, torch.addmm):
        result = call(*given)
        found.append([result, *torch.autograd.grad(result.sum(), given)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_conversion_to_the_same_dtype_is_its_argument():
    def convert(x):
        with torch.no_grad():
            same = x.bfloat16()
        return same * x

    own, _ = compile_behind_dynamo(convert)
    x = torch.arange(3, dtype=torch.bfloat16, requires_grad=True)
    expected, found = (torch.autograd.grad(call(x).sum(), x) for call in (convert, own))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def stop_at_rows(bias, x, weight):
    x = x.tanh()
    with torch.no_grad():
        rows = x.view(-1, 4)
    return torch.addmm(bias, rows, weight).view(2, 3, 5) + x.sum()


def use_twice(bias, x, weight):
    flat = torch.addmm(bias, x.view(-1, 4), weight)
    return flat.view(2, 3, 5) + flat.sum()


def fold_otherwise(bias, x, weight):
    return torch.addmm(bias, x.view(-1, 4), weight).view(3, 2, 5)


@pytest.mark.parametrize("function", [stop_at_rows, use_twice, fold_otherwise])
def test_views_stay_where_the_whole_tensor_would_do_something_else(function):
    given = {1: BIAS, 3: torch.randn(2, 3, 4), 2: RIGHT}
    leaves = {dimensions: each.clone().requires_grad_() for dimensions, each in given.items()}
    graph = capture(function, *leaves.values(), replaces=False)
    arguments = [leaves[node.meta["example_value"].ndim] for node in graph.graph.find_nodes(op="placeholder")]
    found = []
    for _ in range(2):
        (result,) = graph(*arguments)
        found.append([result, *torch.autograd.grad(result.square().sum(), arguments, materialize_grads=True)])
        replace_operations(graph)
    targets = list_targets(graph)
    assert targets.count("view") == 2 and "addmm" not in targets
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Scores(torch.nn.Module):
    """Scores as in T5: a write in place follows an operation that Thunder lacks."""

    def __init__(self):
        super().__init__()
        self.weight, self.table = torch.nn.Parameter(RIGHT.clone()), torch.nn.Parameter(torch.ones(9, 5))

    def forward(self, x, numbers):
        scores = x @ self.weight
        scores += self.table[torch.min(numbers, numbers.flip(0))]
        return torch.softmax(scores, -1)


@pytest.mark.parametrize("accelerators", ["splitting,tracing", "tracing"])
def test_a_write_in_place_has_a_gradient_where_thunder_would_lose_it(monkeypatch, accelerators):
    monkeypatch.setenv("FUSIONCACHE_ACCELERATORS", accelerators)
    model, numbers = Scores(), torch.tensor([1, 2, 8])
    own, _ = compile_behind_dynamo(model)
    gradients = []
    for call in (own, model):
        model.zero_grad()
        call(LEFT, numbers).square().sum().backward()
        gradients.append(model.weight.grad)
    close = torch.allclose(*gradients, rtol=1e-4)
    assert close is ("splitting" in accelerators)
