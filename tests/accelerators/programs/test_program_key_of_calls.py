"""Each single thing of a call: its arguments, and the state that torch and Thunder have for the whole process."""

import contextlib
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from program_keys import Model, assert_names, assert_same, jit, key_of
from thunder.core import trace
from thunder.distributed import skip_data_parallel_grad_sync
from torch.utils._python_dispatch import TorchDispatchMode

from fusioncache.ir.errors import Declined

X = torch.zeros(3, 4)
pytestmark = pytest.mark.usefixtures("few")


@pytest.fixture(scope="module")
def key(jitted):
    key = key_of(jitted, X, 2)
    yield key
    # Each test took back what it had changed.
    assert_same(key, key_of(jitted, X, 2))


class Named(torch.Tensor):
    """A tensor of another class."""


@dataclass
class Point:
    """An argument that is no tensor."""

    x: int


def with_parameter_of(jitted):
    """An argument that is a parameter."""
    return (jitted._model.first.weight, 2), {}


ARGUMENTS = {
    "shape": (lambda _: ((torch.zeros(2, 4), 2), {}), r"`args.0`: .*\(3, 4\).*, .*\(2, 4\)"),
    "strides": (lambda _: ((torch.zeros(4, 3).T, 2), {}), r"`args.0`: .*\(4, 1\).*, .*\(1, 3\)"),
    "device": (lambda _: ((X.to("meta"), 2), {}), "`args.0`: .* cpu, .* meta"),
    "gradient": (lambda _: ((torch.zeros(3, 4, requires_grad=True), 2), {}), "`args.0`: .*, .* requires_grad"),
    "a result of autograd": (
        lambda _: ((torch.zeros(3, 4, requires_grad=True) * 1, 2), {}),
        "`args.0`: .*, .*computed",
    ),
    "subclass": (lambda _: ((X.as_subclass(Named), 2), {}), "`args.0`: torch.Tensor .*, .*Named "),
    "a parameter's memory": (with_parameter_of, "`args.0`"),
    "a conjugated view": (lambda _: ((torch.zeros(3, 4, dtype=torch.complex64).conj(), 2), {}), "`args.0`"),
    "a number's type": (lambda _: ((X, 2.0), {}), "`args.1`: 2, 2.0"),
    "a truth": (lambda _: ((X, True), {}), "`args.1`: 2, True"),
    "a text": (lambda _: ((X, "2"), {}), "`args.1`: 2, '2'"),
    "an object": (lambda _: ((X, Point(2)), {}), "`args.1`: 2, .*Point"),
    "by name": (lambda _: ((X,), {"scale": 2}), "`kwargs.scale`: none, 2"),
    "one more by name": (lambda _: ((X, 2), {"more": X}), "`kwargs.more`: none, "),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_key_names_the_argument_that_is_another_one(name, jitted, key):
    make, expected = ARGUMENTS[name]
    args, kwargs = make(jitted)
    assert_names(expected, key, key_of(jitted, *args, **kwargs))


def test_the_numbers_in_a_tensor_are_not_in_the_key(jitted, key):
    assert key_of(jitted, torch.ones(3, 4), 2) == key


def test_arguments_that_share_memory_are_others_than_those_that_do_not(jitted):
    y = torch.zeros(3, 4)
    apart, same = key_of(jitted, X, y), key_of(jitted, X, X)
    assert_names("`args.1`", apart, same)
    assert_names("`args.1`", apart, key_of(jitted, X, X[:]))
    assert_names("`args.1`", same, key_of(jitted, X, X[:]))


def test_the_order_of_named_arguments_can_be_seen_by_a_function(jitted):
    assert_names("`args`: 1 a b, 1 b a", key_of(jitted, X, a=1, b=2), key_of(jitted, X, b=2, a=1))


def test_an_argument_without_a_value_refuses_the_program(jitted, tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(Declined, match=r"^an argument: "):
        key_of(jitted, X, file)


@contextlib.contextmanager
def setting(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def attribute(owner, name, value):
    return setting(lambda: getattr(owner, name), lambda each: setattr(owner, name, each), value)


STATE = {
    "gradients": (torch.no_grad, "the state grad: True, False"),
    "inference": (torch.inference_mode, "the state inference_mode: False, True"),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "the state autocast.cpu: False, torch.bfloat16"),
    "autocast of a GPU": (
        lambda: setting(lambda: False, lambda on: torch.set_autocast_enabled("cuda", on), True),
        "the state autocast.cuda: False, ",
    ),
    "anomaly mode": (lambda: torch.autograd.set_detect_anomaly(True), "the state anomaly_mode"),
    "default dtype": (
        lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        "the state torch.default_dtype: torch.float32, torch.float64",
    ),
    "default device": (lambda: torch.device("meta"), "the state default_device: cpu, meta"),
    "deterministic": (
        lambda: setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "warn"),
        "the state torch.deterministic: 0, 1",
    ),
    "precision": (
        lambda: attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        "the state torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    ),
    "cudnn": (lambda: attribute(torch.backends.cudnn, "enabled", False), "the state torch.backends.cudnn.enabled"),
    "attention": (
        lambda: setting(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
        "the state torch.flash_sdp: True, False",
    ),
    "attention by cuDNN": (
        lambda: setting(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False),
        "the state torch.cudnn_sdp: True, False",
    ),
    "order of attentions": (
        lambda: setting(torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order, [3, 1, 2, 0, 4]),
        r"the state torch.sdp_priority: \[1, 2, 0, 3, 4\], \[3, 1, 2, 0, 4\]",
    ),
    "compiling": (
        lambda: attribute(torch.compiler, "is_exporting", lambda: True),
        r"the state compiling: \(False, False\), \(False, True\)",
    ),
    "torch functions": (torch._C.DisableTorchFunctionSubclass, "the state torch_function: True, False"),
    "thunder's gradient synchronization": (
        skip_data_parallel_grad_sync,
        "the state thunder.no_grad_sync: False, True",
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_the_key_names_the_state_that_is_another_one(name, jitted, key):
    change, expected = STATE[name]
    with change():
        other = key_of(jitted, X, 2)
    assert_names(expected, key, other)


def test_where_thunder_reads_a_trace_from_a_file_no_program_is_kept(jitted, monkeypatch):
    monkeypatch.setattr(trace, "_execution_file", SimpleNamespace(get=lambda: "trace.py"))
    with pytest.raises(Declined, match="reads its traces from a file"):
        key_of(jitted, X)


def test_what_thunder_remembers_of_autocasts_is_seen_but_not_how_often(jitted, key):
    stack = jitted._lc_cd.autocast_stack
    stack.push("cpu", torch.bfloat16, True)
    try:
        once = key_of(jitted, X, 2)
        assert_names("the state thunder.autocast: empty, cpu:torch.bfloat16:True", key, once)
        stack.push("cpu", torch.bfloat16, True)
        assert key_of(jitted, X, 2) == once
    finally:
        stack.stack.clear()


class Counting(torch.overrides.TorchFunctionMode):
    """Takes part in every call of torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Passing(TorchDispatchMode):
    """Takes part below autograd."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_under_a_mode_no_program_is_kept(jitted):
    with Counting(), pytest.raises(Declined, match="a torch mode is active: Counting"):
        key_of(jitted, X)
    with Passing(), pytest.raises(Declined, match="a torch mode is active: a TorchDisp"):
        key_of(jitted, X)


def test_within_a_transform_of_torch_no_program_is_kept(jitted):
    def function(x):
        key_of(jitted, X)
        return x

    with pytest.raises(Declined, match=r"inside a torch\.func"):
        torch.func.vmap(function)(X)


def test_the_key_names_the_gpus_that_executors_ask_for(jitted, key, monkeypatch):
    def with_gpus(*devices, current=0):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: devices[index])
        return key_of(jitted, X, 2)

    one, other = SimpleNamespace(name="A", major=9, minor=0), SimpleNamespace(name="A", major=10, minor=0)
    gpu = with_gpus(one)
    assert_names("the state cuda.devices: none, A 9.0", key, gpu)
    assert_names("the state cuda.devices: A 9.0, A 10.0", gpu, with_gpus(other))
    assert_names("the state cuda.current_device: 0, 1", gpu, with_gpus(one, one, current=1))
    assert with_gpus(one, one) == gpu


def test_a_model_that_is_spread_over_processes_in_an_unknown_way_is_refused():
    model = Model()
    model.use_ddp = True
    with pytest.raises(Declined, match="the model is distributed over processes"):
        key_of(jit(model), X)
