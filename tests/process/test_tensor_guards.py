"""Torch's guards of tensors: the changes they notice, and that guards that miss one are not used."""

from functools import partial
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.process import tensor_guards
from fusioncache.process.tensor_guards import guard_tensors


def make():
    return [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), torch.zeros(2, dtype=torch.complex64)]


OTHERS = {  # besides the changes that each process tries
    "shape of one element more": (1, torch.nn.Parameter(torch.zeros(5))),
    "strides of the same size": (1, torch.nn.Parameter(torch.zeros(8)[::2])),
    "dtype of the same size": (0, torch.zeros(2, 3, dtype=torch.float16).to(torch.bfloat16)),
    "wants none": (1, torch.nn.Parameter(torch.zeros(4), requires_grad=False)),
    "no parameter": (1, torch.zeros(4, requires_grad=True)),
    "class": (0, torch.zeros(2, 3).as_subclass(type("Own", (torch.Tensor,), {}))),
    "layout by rows": (0, torch.zeros(2, 3).to_sparse_csr()),
    "quantized": (0, torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)),
    "made for inference": (0, torch.inference_mode()(torch.zeros)(2, 3)),
    "a number": (0, 1.0),
    "a list": (0, [0.0]),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_each_change_alone_is_noticed(name, grad):
    guard = guard_tensors(make())
    place, other = OTHERS[name]
    with torch.set_grad_enabled(grad):
        values = make()
        assert guard(*values)
        values[place] = other
        assert not guard(*values)


class Strange(torch.Tensor):
    """A tensor whose strides come from ``__torch_dispatch__``, which does not implement them."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3), dispatch_sizes_strides_policy="strides")

    @classmethod
    def __torch_dispatch__(cls, *_, **__):
        return NotImplemented


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("is_nested", [True, False], ids=["nested", "strange"])
@pytest.mark.parametrize("wrap", [torch.Tensor.detach, torch.nn.Parameter])
def test_tensors_without_strides_do_not_end_the_process(wrap, is_nested):
    """Torch's guards do end it."""
    made = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]) if is_nested else Strange()
    other, like = wrap(made) if is_nested else made, wrap(torch.zeros(2, 3))
    assert guard_tensors([other]) is None
    guard = guard_tensors([like])
    assert guard(like) and not guard(other)


def test_a_tensor_that_is_given_twice_says_nothing():
    x = torch.zeros(2)
    assert not guard_tensors([torch.zeros(2), torch.zeros(2)])(x, x)
    assert guard_tensors([torch.zeros(2), torch.zeros(2)])(x, x[:])


def test_there_is_no_guard_of_other_values_and_a_guard_keeps_no_tensor():
    for values in ([None], [1], ["a"], [torch.zeros(2), None]):
        assert guard_tensors(values) is None
    tensor = torch.zeros(2)
    seen, guard = ref(tensor), guard_tensors([tensor])
    del tensor
    assert seen() is None and guard(torch.zeros(2))


@pytest.fixture
def other_torch(monkeypatch):
    """Yields a function that replaces torch's guards, as another version of torch may."""

    def set_guards(guards):
        monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", guards)
        tensor_guards.find_guards.cache_clear()

    yield set_guards
    monkeypatch.undo()
    tensor_guards.find_guards.cache_clear()


@pytest.mark.parametrize("missed", range(1, 12))
def test_guards_that_miss_a_change_are_not_used(missed, other_torch):
    """Each change is tried with separate guards. The guards of one change notice nothing."""
    made, own = [], torch._C._dynamo.guards.TensorGuards

    def make_guards(*tensors, **options):
        made.append(tensors)
        return SimpleNamespace(check=lambda *_: True) if len(made) == missed else own(*tensors, **options)

    other_torch(make_guards)
    assert guard_tensors([torch.zeros(2)]) is None
    assert len(made) == missed


def test_a_torch_without_guards(monkeypatch, other_torch):
    def fail(*_, **__):
        raise TypeError("unexpected keyword")

    other_torch(fail)
    assert guard_tensors([torch.zeros(2)]) is None
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    tensor_guards.find_guards.cache_clear()
    assert guard_tensors([torch.zeros(2)]) is None


class UnseenMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        pytest.fail("it was seen")


CONTEXTS = torch.inference_mode, torch.no_grad, lambda: torch.device("meta"), UnseenMode
IN_DOUBLES = partial(apply_torch_settings, {"torch.default_dtype": "torch.float64"})


@pytest.mark.usefixtures("other_torch")
@pytest.mark.parametrize("context", [*CONTEXTS, IN_DOUBLES])
def test_it_is_tried_in_any_context(context):
    tensor_guards.find_guards.cache_clear()
    tensor = torch.zeros(2)
    with context():
        assert guard_tensors([tensor]) is not None
    assert guard_tensors([tensor])(torch.zeros(2))


@pytest.mark.gpu
def test_a_device_of_the_same_type_is_another():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    first, second = (torch.zeros(2, device=f"cuda:{index}") for index in (0, 1))
    assert guard_tensors([first])(first.clone())
    assert not guard_tensors([first])(second)
