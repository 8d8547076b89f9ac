"""Attention by cuDNN, which users opt in to, with torch's kernels simulated on a CPU."""

import pytest
import thunder
import torch
from attention_layers import Attention, compile_with_cudnn, take_step
from cudnn_kernels import emulate_cudnn
from stored_programs import compile_anew, without_interpreter
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

import fusioncache
from fusioncache.accelerators.attention import NAME, executor

pytestmark = pytest.mark.usefixtures("eager_regions")
"""Thunder alone must compute the same bits."""
SIZE, HEADS = 8, 2
LENGTHS = (12, 10, 8, 6)


@pytest.fixture
def asked():
    """Simulates cuDNN; yields a list of the queries about support for each attention."""
    with pytest.MonkeyPatch.context() as patch, emulate_cudnn(patch) as asked:
        yield asked


KINDS = {"of all": {}, "causal, scaled": {"is_causal": True, "scale": 0.3}}


def train(call, model, length=12):
    return take_step(call, model, length, lambda output: 2 * output.detach())


def count_calls(compiled, name):
    traces = [thunder.last_traces(compiled)[-1], *thunder.last_backward_traces(compiled)[-1:]]
    return sum(symbol.sym.name == name for trace in traces for symbol in trace.bound_symbols)


@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_an_attention(tmp_path, asked, kind):
    model = Attention(HEADS, SIZE, **KINDS[kind])
    compiled, transform = compile_with_cudnn(model, tmp_path)
    torch.testing.assert_close(train(compiled, model), train(model, model))
    assert (count_calls(compiled, "cudnn_attend_forward"), count_calls(compiled, "cudnn_attend_backward")) == (1, 1)
    with torch.no_grad():
        x = torch.randn(2, 9, HEADS * SIZE)
        found, expected = compiled(x), model(x)
    torch.testing.assert_close(found, expected)
    assert count_calls(compiled, "cudnn_attend") == 1
    assert not transform.stats().bypasses
    assert found.stride() == expected.stride()  # it is a tensor of its own, which may be written into
    scale = torch.ones(SIZE, requires_grad=True)
    found.mul_(scale).sum().backward()
    assert scale.grad is not None
    torch.testing.assert_close(compiled(x).add_(1.0), expected + 1.0)


def return_copies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns a copy, another one that attention takes as well, and attention, which takes a copy of its own."""
    alone, query = x.transpose(1, 2).contiguous(), (x + 1).transpose(1, 2).contiguous()
    return alone, query, scaled_dot_product_attention(query.transpose(1, 2), x, x)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_copy_that_is_returned_stays(tmp_path, asked, with_gradients):
    compiled, _ = compile_with_cudnn(return_copies, tmp_path)
    x = torch.randn(2, HEADS, 5, SIZE, requires_grad=with_gradients)
    found, expected = compiled(x), return_copies(x)
    torch.testing.assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert len({each.untyped_storage().data_ptr() for each in (x, *found)}) == 4
    assert count_calls(compiled, "contiguous") == 2


def test_a_mask_is_taken_without_gradients_alone(tmp_path, asked):
    """Attention that a backward pass may follow is checked as such, even if the model ends with gradients off."""
    model = Attention(HEADS, SIZE, mask=True)
    compiled, _ = compile_with_cudnn(model, tmp_path)
    x = torch.randn(2, 9, HEADS * SIZE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert (count_calls(compiled, "cudnn_attend"), count_calls(compiled, "make_attention_bias")) == (1, 1)
    assert not any(with_gradients for *_, with_gradients in asked)
    asked.clear()
    with pytest.raises(NotImplementedError, match="with a mask"):  # the simulated one accepts all
        train(compiled, model)
    assert all(with_gradients for *_, with_gradients in asked)


def test_without_asking_and_on_a_cpu_it_is_thunders(tmp_path):
    model = Attention(HEADS, SIZE, is_causal=True)
    expected = train(thunder.jit(model, executors=fusioncache.executors()), model)
    for compile_model in (compile_with_cudnn, compile_anew):
        compiled, _ = compile_model(model, tmp_path / compile_model.__name__)
        assert all(map(torch.equal, train(compiled, model), expected))
        assert not count_calls(compiled, "cudnn_attend_forward")


class Meta:
    """A fake of a tensor proxy, by default on a GPU."""

    def __init__(self, *shape, dtype=thunder.dtypes.bfloat16, device="cuda:0"):
        self.shape, self.ndim, self.dtype, self.device = shape, len(shape), dtype, thunder.devices.to_device(device)


QUERY, BITS = Meta(1, HEADS, 4, SIZE), Meta(1, 1, 4, 4, dtype=thunder.dtypes.bool8)
CUDNN = SDPBackend.CUDNN_ATTENTION.value
GIVEN = {"query": QUERY, "key": QUERY, "value": QUERY, "mask": None}
GIVEN |= {"dropout": 0.0, "is_causal": True, "scale": None, "with_gradients": True}
TAKEN = {"all as it is": {}, "without gradients": {"with_gradients": False}}
TAKEN["a mask of bits without gradients"] = {"mask": BITS, "is_causal": False, "with_gradients": False}
LEFT = {
    "on a CPU": {"key": Meta(1, HEADS, 4, SIZE, device="cpu")},
    "dropout": {"dropout": 0.1},
    "three dimensions": {"query": Meta(HEADS, 4, SIZE)},
    "a mask with gradients": {"mask": BITS},
    "a mask of numbers": {"mask": Meta(1, 1, 4, 4), "with_gradients": False},
    "a mask of one dimension": {"mask": Meta(4, dtype=thunder.dtypes.bool8), "with_gradients": False},
}


@pytest.fixture
def torch_chooses(monkeypatch):
    """Returns a function that fixes torch's choice of a kernel without a GPU, and returns a list of torch's queries."""
    seen, own = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, device=None, **options: own(*args, **options))

    def choose(kernel):
        def find(*args, **options):
            seen.append((args, options, torch.is_grad_enabled()))
            if isinstance(kernel, Exception):
                raise kernel
            return kernel

        monkeypatch.setattr(torch, "_fused_sdp_choice", find)
        return seen

    return choose


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN)
def test_torch_is_asked_about_what_it_will_be_given(torch_chooses, change):
    seen, given = torch_chooses(CUDNN), GIVEN | change
    assert executor.can_attend_with_cudnn(*given.values())
    ((query, key, value, mask, dropout, is_causal), options, with_gradients), *_ = seen
    for each in (query, key, value):
        assert (tuple(each.shape), each.dtype, each.stride(-1)) == (QUERY.shape, torch.bfloat16, 1)
        assert each.requires_grad == with_gradients == given["with_gradients"]
    assert (None if mask is None else (tuple(mask.shape), mask.dtype)) == (given["mask"] and (BITS.shape, torch.bool))
    assert (dropout, is_causal, options) == (0.0, given["is_causal"], {"scale": None})


@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
def test_what_cudnn_is_not_given(torch_chooses, change):
    seen = torch_chooses(CUDNN)
    assert not executor.can_attend_with_cudnn(*(GIVEN | change).values())
    assert not seen


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION.value, RuntimeError("no GPU")], ids=str)
def test_it_is_left_to_thunder_where_torch_has_another_one_or_no_answer(torch_chooses, kernel):
    torch_chooses(kernel)
    assert not executor.can_attend_with_cudnn(*GIVEN.values())


def test_lengths_are_filled_in_and_the_choice_is_made_again(tmp_path, asked, monkeypatch):
    """If cuDNN cannot compute a length, the program for that length is derived anew."""
    model = Attention(HEADS, SIZE, is_causal=True)
    compiled, transform = compile_with_cudnn(model, tmp_path)
    for length in LENGTHS:
        torch.testing.assert_close(train(compiled, model, length), train(model, model, length))
    assert (thunder.cache_misses(compiled), transform.stats().programs_filled) == (2, len(LENGTHS) - 2)
    assert {query.shape[2] for query, *_ in asked} >= set(LENGTHS)

    monkeypatch.setattr(executor, "can_attend_with_cudnn", lambda query, *others: query.shape[2] != 11)
    torch.testing.assert_close(train(compiled, model, 11), train(model, model, 11))
    assert thunder.cache_misses(compiled) == 3
    assert not count_calls(compiled, "cudnn_attend_forward")


def test_a_later_process_loads_its_program_and_asks_for_the_same_executor(tmp_path, asked):
    model = Attention(HEADS, SIZE)
    first, _ = compile_with_cudnn(model, tmp_path)
    expected = train(first, model)
    second, transform = compile_with_cudnn(Attention(HEADS, SIZE), tmp_path)
    with without_interpreter():
        found = train(second, second._model)
    assert all(map(torch.equal, found, expected))
    assert transform.stats().programs_loaded == 1
    third, transform = compile_anew(Attention(HEADS, SIZE), tmp_path)
    train(third, third._model)
    assert transform.stats().programs_loaded == 0


def test_the_plugin_brings_it_in_front_of_all_others():
    plain, ours = (fusioncache.Plugin(**options).setup_executors() for options in ({}, {"attention": "cudnn"}))
    assert [each.name for each in ours] == [NAME, *(each.name for each in plain)]
