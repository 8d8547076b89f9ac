"""Each ingredient of the key of a program: of the call, the options of ``thunder.jit``, and the process."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import einops
import lightning_utilities
import networkx
import numpy
import pytest
import thunder
import torch
from program_keys import Keyed, Model, assert_names, assert_same, attribute, jit, key_of, setting
from thunder.core import trace
from thunder.distributed import skip_data_parallel_grad_sync
from thunder.extend import FUEL_LEVEL, OperatorExecutor
from thunder.transforms.cudagraph import CUDAGraphTransform
from thunder.transforms.prune_prologue_checks import PrunePrologueChecks
from thunder_versions import VERSION
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import BaseTorchFunctionMode

import fusioncache
from fusioncache.ir.errors import Declined
from fusioncache.process.sources import digest_sources

X = torch.zeros(3, 4)
pytestmark = pytest.mark.usefixtures("few_functions")


@pytest.fixture(scope="module")
def key(jitted):
    key = key_of(jitted, X, 2)
    yield key
    # Each test has undone its changes.
    assert_same(key, key_of(jitted, X, 2))


@dataclass
class Point:
    x: int


# More is in tests/programs/test_program_mutations.py.
ARGUMENTS = {
    "strides": (lambda _: (torch.zeros(4, 3).T, 2), r"`args.0`: .*\(4, 1\).*, .*\(1, 3\)"),
    "device": (lambda _: (X.to("meta"), 2), "`args.0`: .* cpu, .* meta"),
    "a result of autograd": (lambda _: (torch.zeros(3, 4, requires_grad=True) * 1, 2), "`args.0`: .*, .*computed"),
    "a conjugated view": (lambda _: (torch.zeros(3, 4, dtype=torch.complex64).conj(), 2), "`args.0`"),
    "a number's type": (lambda _: (X, 2.0), "`args.1`: 2, 2.0"),
    "a text": (lambda _: (X, "2"), "`args.1`: 2, '2'"),
    "an object": (lambda _: (X, Point(2)), "`args.1`: 2, .*Point"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_key_names_the_argument_that_is_another_one(name, jitted, key):
    make, expected = ARGUMENTS[name]
    assert_names(expected, key, key_of(jitted, *make(jitted)))


def test_named_arguments_are_in_the_key_in_their_order(jitted, key):
    """A function can see this order."""
    assert_names("`kwargs.scale`: none, 2", key, key_of(jitted, X, scale=2))
    assert_names("`kwargs.more`: none, ", key, key_of(jitted, X, 2, more=X))
    assert_names("`args`: 1 a b, 1 b a", key_of(jitted, X, a=1, b=2), key_of(jitted, X, b=2, a=1))


def test_the_numbers_in_a_tensor_are_not_in_the_key(jitted, key):
    assert key_of(jitted, torch.ones(3, 4), 2) == key


def test_arguments_that_share_memory_are_others_than_those_that_do_not(jitted):
    y = torch.zeros(3, 4)
    apart, same = key_of(jitted, X, y), key_of(jitted, X, X)
    assert_names("`args.1`", apart, same)
    assert_names("`args.1`", apart, key_of(jitted, X, X[:]))
    assert_names("`args.1`", same, key_of(jitted, X, X[:]))


def test_an_argument_without_a_value_refuses_the_program(jitted, tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(Declined, match=r"^an argument: "):
        key_of(jitted, X, file)


CUDA = torch.backends.cuda
# Differences of keys in the state and in versions, each with the change that causes it.
STATE = {
    "the state grad: True, False": torch.no_grad,
    "the state inference_mode: False, True": torch.inference_mode,
    "the state autocast.cuda: False, ": lambda: setting(
        lambda: False, lambda on: torch.set_autocast_enabled("cuda", on), True
    ),
    "the state int_max_str_digits: 4300, 0": lambda: setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits, 0),
    "the state anomaly_mode: ": lambda: torch.autograd.set_detect_anomaly(True),
    "the state torch.deterministic: 0, 1": lambda: setting(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "warn"
    ),
    "the state torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: attribute(
        CUDA.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "the state torch.backends.cudnn.enabled": lambda: attribute(torch.backends.cudnn, "enabled", False),
    "the state torch.flash_sdp: True, False": lambda: setting(CUDA.flash_sdp_enabled, CUDA.enable_flash_sdp, False),
    "the state torch.cudnn_sdp: True, False": lambda: setting(CUDA.cudnn_sdp_enabled, CUDA.enable_cudnn_sdp, False),
    r"the state torch.sdp_priority: \[1, 2, 0, 3, 4\], \[3, 1, 2, 0, 4\]": lambda: setting(
        torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order, [3, 1, 2, 0, 4]
    ),
    r"the state compiling: \(False, False\), \(False, True\)": lambda: attribute(
        torch.compiler, "is_exporting", lambda: True
    ),
    "the state torch_function: True, False": torch._C.DisableTorchFunctionSubclass,
    "the state thunder.no_grad_sync: False, True": skip_data_parallel_grad_sync,
    r"python: (cpython-3\d+) .*, \1 3.12.99": lambda: attribute(sys, "version", "3.12.99 (main)"),
    "torch: .*, .*abcdef": lambda: attribute(torch.version, "git_version", "abcdef"),
    f"thunder: {VERSION}, 0.2.8": lambda: attribute(thunder, "__version__", "0.2.8"),
    "fusioncache: .*, 99": lambda: attribute(fusioncache, "__version__", "99"),
    "einops: .*, 99": lambda: attribute(einops, "__version__", "99"),
    "lightning_utilities: .*, 99": lambda: attribute(lightning_utilities, "__version__", "99"),
    "networkx: .*, 99": lambda: attribute(networkx, "__version__", "99"),
    "numpy: .*, 99": lambda: attribute(numpy, "__version__", "99"),
}


@pytest.mark.parametrize("expected", STATE)
def test_the_key_names_the_state_or_version_that_is_another_one(expected, jitted, key):
    with STATE[expected]():
        other = key_of(jitted, X, 2)
    assert_names(expected, key, other)


@pytest.mark.parametrize("name", ["NVFUSER_DISABLE", "NVFUSER_OPTIMIZATION_FUEL", "THUNDER_ANNOTATE_TRACES"])
def test_the_key_names_the_variable_that_is_another_one_and_hides_its_value(name, jitted, key, monkeypatch):
    monkeypatch.setenv("OF_OTHERS", "1")  # which is not read
    assert key_of(jitted, X, 2) == key
    monkeypatch.setenv(name, "a secret")
    other = key_of(jitted, X, 2)
    assert_names(f"the variable {name}: none, hidden str ", key, other)
    assert "secret" not in other.text


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


def test_where_a_state_has_no_value_no_program_is_kept(jitted, monkeypatch):
    def within(x):
        key_of(jitted, X)
        return x

    with BaseTorchFunctionMode(), pytest.raises(Declined, match="a torch mode is active: BaseTorchFunctionMode"):
        key_of(jitted, X)
    with FakeTensorMode(), pytest.raises(Declined, match="a torch mode is active: a TorchDisp"):
        key_of(jitted, X)
    with pytest.raises(Declined, match=r"inside a torch\.func"):
        torch.func.vmap(within)(X)
    distributed = Model()
    distributed.use_ddp = True
    with pytest.raises(Declined, match="the model is distributed over processes"):
        key_of(jit(distributed), X)
    monkeypatch.setattr(trace, "_execution_file", SimpleNamespace(get=lambda: "trace.py"))
    with pytest.raises(Declined, match="reads its traces from a file"):
        key_of(jitted, X)


def ours(**options):
    return {"transforms": [fusioncache.FusionCache(**{"backend": "eager", **options})]}


def with_transforms(*more):
    return {"transforms": [*ours()["transforms"], *more]}


OPTIONS = {
    "cache": ({"cache": "no caching"}, "the option cache_option: .*CONSTANT_VALUES, .*NO_CACHING"),
    "sharp edges": ({"sharp_edges": "error"}, "the option sharp_edges: .*ALLOW, .*ERROR"),
    "a compile option": ({"nv_enable_matmul": True}, "the option compile_options.nv_enable_matmul: none, True"),
    "executors": ({"executors": ()}, r"the option executors: .*fusioncache.*, \(ad-hoc\) torch python"),
    "backend": (ours(backend="inductor"), "the option transforms.0: .*eager.*, .*inductor"),
    "recompute": (ours(recompute="residual"), "the option transforms.0"),
    "no transform": ({"transforms": []}, "the option transforms.0: .*, none"),
    "one more": (with_transforms(Keyed("1")), "the option transforms.1: none, 1"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_key_names_the_option_that_is_another_one(name, model, key):
    options, expected = OPTIONS[name]
    assert_names(expected, key, key_of(jit(model, **options), X, 2))


def test_options_that_change_no_trace_are_not_in_the_key(model, key):
    assert key_of(jit(model, **ours(explain=False, verify=True, jobs=0)), X, 2) == key


def test_transforms_are_compared_by_what_they_say_and_do_and_in_their_order(model):
    def key(*more):
        return key_of(jit(model, **with_transforms(*more)), X)

    assert key(Keyed("a b"), Keyed("2")) == key(Keyed("a  b"), Keyed("2"))
    assert_names("the option transforms.1: 1, 2", key(Keyed("1"), Keyed("2")), key(Keyed("2"), Keyed("1")))
    half, same, other = (key(Keyed("1", dtype)) for dtype in (torch.float16, torch.float16, torch.bfloat16))
    assert_same(half, same)
    assert_names("`parameters.first.weight`: .*float16.*, .*bfloat16", half, other)
    some, again, everything = (key(PrunePrologueChecks(each)) for each in (False, False, True))
    assert some == again
    assert_names("the option transforms.1: .*False.*, .*True", some, everything)


class Silent(thunder.Transform):
    pass


class Undecided(thunder.Transform):
    def cache_key(self):
        raise KeyError("none")


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (Silent(), r"the transform .*Silent has no method cache_key\(\): add one"),
        (CUDAGraphTransform(), r"CUDAGraphTransform has no method cache_key\(\): use FusionCache\(graphs=True\)"),
        (Undecided(), r"cache_key\(\) of .*Undecided failed: KeyError"),
        (Keyed(None), r"cache_key\(\) of .*Keyed returned no text"),
    ],
)
def test_a_transform_that_does_not_say_how_it_is_keyed_refuses_the_program(model, transform, reason):
    with pytest.raises(Declined, match=reason):
        key_of(jit(model, **with_transforms(transform)), X)


def test_executors_of_one_name_may_have_other_options(model):
    def key(version="1", **attributes):
        executor = OperatorExecutor("mine", version=version)
        vars(executor).update(attributes)
        return key_of(jit(model, executors=[executor]), X)

    assert key() == key()
    assert_names("the option executors.mine.version: 1, 2", key("1"), key("2"))
    assert_names("the option executors.mine.limit: 1, 2", key(limit=1), key(limit=2))
    with pytest.raises(Declined, match="the optimization fuel of the executor mine is limited"):
        key(_optimization_fuel=3)
    assert key(_optimization_fuel=FUEL_LEVEL.UNLIMITED) != key()


def write_sources(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
        os.utime(folder / f"{name}.py", (1, 1))
    return folder


def test_sources_are_compared_by_what_is_in_them_and_not_by_where_or_when(tmp_path):
    one = write_sources(tmp_path / "one", a="x = 1", b="")
    same = write_sources(tmp_path / "same", a="x = 1", b="")
    os.utime(same / "a.py", (2, 2))
    (same / "tests").mkdir()
    (same / "tests" / "c.py").write_text("is no part of it")
    assert digest_sources(str(one)) == digest_sources(str(same))
    others = {"content": {"a": "x = 2", "b": ""}, "name": {"a": "x = 1", "c": ""}, "less": {"a": "x = 1"}}
    others["moved"] = {"a": "", "b": "x = 1"}
    folders = [one, *(write_sources(tmp_path / name, **files) for name, files in others.items())]
    assert len({digest_sources(str(each)) for each in folders}) == 5
    young = write_sources(tmp_path / "young", a="x = 1")
    os.utime(young / "a.py", (time.time() + 60,) * 2)
    with pytest.raises(match=r"^a\.py was changed after it was imported$"):
        digest_sources(str(young))
