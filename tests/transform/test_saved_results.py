"""A result of attention is saved once for backward, as what is multiplied; attention, which is played, copies none."""

import attention_layers as layers
import pytest
import thunder
import torch
from attention_layers import WIDTH
from flash_kernels import play_flash_attention
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.programs.definitions import ForeignRuns
from fusioncache.accelerators.steps.views import RESULTS


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


@pytest.fixture(autouse=True)
def kernels():
    """What is played."""
    with pytest.MonkeyPatch.context() as patch, play_flash_attention(patch) as kernels:
        yield kernels


ONCE = ("Layer", "Scaled", "Frozen", "RowsLater")
"""What is saved once."""
TWICE = (
    *("ResultReturned", "JoinedReturned", "JoinedAdded", "HeadsKept", "HeadsSplit", "SwappedOtherwise", "Writing"),
    "FrozenReturned",
)
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
    model = getattr(layers, kind)()
    (compiled, transform), (plain, _) = compile_both(model, tmp_path)
    found, copies = take_step(compiled, model), kernels.copies
    expected = take_step(plain, model)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    torch.testing.assert_close(found, take_step(model, model))
    assert transform.stats().taken_out.get(RESULTS, 0) == (kind in ONCE)
    assert not transform.stats().bypasses
    if kind in ("Layer", "Scaled", "Frozen"):
        assert (copies, kernels.copies) == (0, 1)
    is_one_less = len(list_saved(plain)) - len(list_saved(compiled)) == 1
    assert is_one_less is (kind in ONCE and kind != "Frozen")


@pytest.mark.parametrize("options", [{}, {"recompute": "residual"}, {"residual": "fold"}], ids=str)
def test_several_layers_and_what_else_is_saved_otherwise(tmp_path, kernels, options):
    model = layers.Stack()
    compiled, transform = compile_anew(model, tmp_path, **options)
    torch.testing.assert_close(take_step(compiled, model), take_step(model, model))
    assert transform.stats().taken_out[RESULTS] == 2 and not kernels.copies


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("kind", ["JoinedReturned", "FrozenReturned", "Layer"])
def test_what_is_written_between_forward_and_backward_is_noticed_as_before(tmp_path, kind, silently):
    model = getattr(layers, kind)()
    found = []
    for compiled, _ in compile_both(model, tmp_path):
        torch.manual_seed(0)
        x = torch.randn(2, 6, WIDTH, requires_grad=True)
        outputs = compiled(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum(each.square().sum() for each in outputs)
        if silently:
            outputs[-1].data.mul_(2.0)
        else:
            outputs[-1].detach().mul_(2.0)
        try:
            found.append(torch.autograd.grad(total, x)[0])
        except RuntimeError as error:
            found.append(str(error)[:60])
    assert type(found[0]) is type(found[1])
    assert torch.equal(*found) if isinstance(found[0], torch.Tensor) else found[0] == found[1]


@pytest.fixture
def kept(monkeypatch):
    """Programs are kept although what plays the kernels is nobody's that is known."""
    monkeypatch.setattr(ForeignRuns, "check", lambda self: None)


def test_lengths_are_filled_in_and_a_later_process_loads_the_same(tmp_path, kernels, kept):
    model = layers.Layer()
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
    model = layers.Layer()
    compiled, transform = compile_anew(model, tmp_path, jit={"transforms": [CUDAGraphTransform()]}, programs=False)
    found = take_step(compiled, model)
    assert transform.stats().taken_out[RESULTS] == 1
    assert "CUDAGraph" in str(thunder.last_backward_traces(compiled)[-1])
    for one, other in zip(found, take_step(compile_anew(model, tmp_path, lean="thunder")[0], model), strict=True):
        assert torch.equal(one, other)
