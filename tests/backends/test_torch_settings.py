"""Backends by name, their one-time start, and settings of torch, compilers and the process, which are in keys."""

import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import fake_cuda
import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
from models import are_same, compile_plain, compile_with
from store_processes import PersistentEager, Process, X, Y, make_region, make_unary_region
from torch._inductor.codegen import common
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.proxy_tensor import make_fx

import fusioncache
from fusioncache.accelerators.precompile import entry_compiler as warmer
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, TaskOutcome, read_request
from fusioncache.backends import api
from fusioncache.backends import torch_settings as settings_module
from fusioncache.backends.api import CompilerStarts, make_backend
from fusioncache.backends.bound_symbols import bind, torch_function
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor import artifacts
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.torch_settings import apply_torch_settings, read_torch_settings
from fusioncache.ir import Graph
from fusioncache.ir.errors import Declined
from fusioncache.ir.keys import read_values
from fusioncache.store import Store
from fusioncache.transform import executor


@pytest.mark.parametrize("name", api.BACKENDS)
def test_each_backend_follows_the_contract(name):
    kind = api.backend_class(name)
    assert issubclass(kind, api.Backend) and kind.name == name and kind.title
    assert api.describe(name, {}) == api.describe("of another version", {"kernels.cu": b""}) == api.Description()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("other", {}, ValueError, "unknown backend 'other': use 'auto' or one of 'nvfuser', 'inductor', 'eager'"),
        ("eager", {"mode": "fast"}, TypeError, "takes no arguments"),
    ],
)
def test_another_name_or_option_is_refused(name, options, error, message):
    with pytest.raises(error, match=message):
        make_backend(name, **options)


@pytest.mark.parametrize("package", ["torch", "thunder"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_another_version_is_another_key(backend, package, monkeypatch):
    before = make_backend(backend).environment()["versions"]
    monkeypatch.setattr(f"{package}.__version__", "0.0.1")
    after = make_backend(backend).environment()["versions"]
    assert set(after.split("\n")) - set(before.split("\n")) == {f"{package} 0.0.1"}


class Slow(PersistentEager):
    """A backend that takes 12 s to start and half a second to compile, on a clock of its own."""

    now = 100.0

    def start(self, device: str) -> None:
        self.now += 12.0

    def compile(self, graph: Graph, args: Any) -> Any:
        self.now += 0.5
        return super().compile(graph, args)


def test_a_start_is_part_of_no_compile_and_of_no_entry(tmp_path, monkeypatch):
    slow, starts = Slow(), CompilerStarts()
    monkeypatch.setattr("time.perf_counter", lambda: slow.now)
    monkeypatch.setattr("fusioncache.cache.executable.process_starts", lambda: starts)
    process = Process(tmp_path, slow)
    process.run(make_region(), X, Y)
    (entry,) = process.cache.store.entries()
    assert entry.seconds == 0.5
    assert process.ledger.stats().start_seconds == {"torch": 12.0}
    process.run(make_unary_region(), X)  # it was started before
    assert [function.seconds for _, function in process.built] == [0.5, 0.5]
    assert process.ledger.stats().start_seconds == {"torch": 12.0}
    assert process.ledger.phases().starting == 12.0


@pytest.mark.parametrize(("device", "result"), [("cpu", X - 3), ("cuda", X.t())])  # one without a kernel for a GPU
def test_starting_torchinductor_compiles_one_function_and_leaves_all_else_alone(device, result, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled, compile_graph = [], artifacts.compile_graph
    monkeypatch.setattr(artifacts, "compile_graph", lambda *given: compiled.append(given) or compile_graph(*given))
    random = torch.random.get_rng_state()
    Inductor().start(device)
    ((function, *_),) = compiled
    assert torch.equal(*function(X), result)
    assert torch.equal(random, torch.random.get_rng_state()) and not (tmp_path / "fxgraph").exists()


def settings(backend: Any) -> dict[str, str]:
    return read_values(backend.environment()["settings"])


OF_TORCH = {
    "torch.default_dtype": "torch.float64",
    "torch.default_device": "meta",
    "torch.deterministic": "1",
    "torch.utils.deterministic.fill_uninitialized_memory": False,
    "torch.float32_matmul_precision": "high",
    "torch.backends.cuda.matmul.fp32_precision": "tf32",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    "torch.backends.cuda.matmul.allow_fp16_accumulation": True,
    "torch.backends.cudnn.benchmark": True,
    "torch.backends.mkldnn.enabled": False,
    "torch.backends.opt_einsum.enabled": False,
    "torch.flash_sdp": False,
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_setting_of_torch_is_in_every_key_and_can_be_made(name):
    backends = [Eager(), Inductor()]
    before = list(map(settings, backends))
    with apply_torch_settings({name: OF_TORCH[name]}):
        for one, backend in zip(before, backends, strict=True):
            assert settings(backend)[name] == str(OF_TORCH[name]) != one[name]
    assert list(map(settings, backends)) == before


def test_every_setting_of_torch_can_be_made_as_it_is_elsewhere():
    here = read_torch_settings()
    assert not [value for value in here.values() if str(value).startswith("no answer")]
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch then raises if its older name for it is read
    try:
        there = read_torch_settings()
        assert there["torch.float32_matmul_precision"] == "no answer: RuntimeError"
    finally:
        torch.backends.cuda.matmul.fp32_precision = here["torch.backends.cuda.matmul.fp32_precision"]
    assert read_torch_settings() == here
    with apply_torch_settings(there):
        assert read_torch_settings() == there
    assert read_torch_settings() == here
    with pytest.raises(ValueError, match=r"torch\.default_dtype cannot be torch\.float3"):
        apply_torch_settings({"torch.default_dtype": "torch.float3"}).__enter__()
    assert read_torch_settings() == here


class Pass(CustomGraphPass):
    """A graph pass without effect, which identifies itself by the given answer."""

    def __init__(self, answer: Any):
        self.answer = answer

    def __call__(self, graph: Any) -> None:
        pass

    def uuid(self) -> Any:
        return self.answer() if callable(self.answer) else self.answer


INDUCTOR = torch._inductor.config
CONFIG = INDUCTOR.__name__
CONFIGURED = {
    "size_asserts": False,
    "cpp.enable_floating_point_contract_flag": "fast",
    "_post_fusion_custom_pass": ["one"],
    **dict.fromkeys(("post_grad_custom_post_pass", "joint_custom_pre_pass", "_pre_fusion_custom_pass"), Pass("one")),
}
VARIABLES = (
    *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_COMPILE_GRAPH_FORMAT", "CXX", "TRITON_INTERPRET"),
    *("NVFUSER_ENABLE", "NVFUSER_DISABLE", "PYTORCH_NVFUSER_MAX_REG_COUNT"),
)
IN_KEYS = {
    **{f"{CONFIG}.{name}": INDUCTOR.patch({name: value}) for name, value in CONFIGURED.items()},
    "torch._functorch.config.functionalize_rng_ops": torch._functorch.config.patch(functionalize_rng_ops=True),
    "torch._dynamo.config.specialize_float": torch._dynamo.config.patch(specialize_float=True),
    **{name: mock.patch.dict(os.environ, {name: "odd \udcff"}) for name in VARIABLES},
    f"{CONFIG}.post_grad_fusion_options": mock.patch.dict(INDUCTOR.post_grad_fusion_options, {"one": {}}),
    "torch._inductor.pass_of_mine": mock.patch.dict(common.custom_backend_passes, {"mine": Pass("one")}),
    "torch.num_threads": mock.patch.object(torch, "get_num_threads", lambda: 77),
}


@pytest.mark.parametrize("name", IN_KEYS)
def test_a_setting_of_a_compiler_is_in_its_key(name):
    kind = NvFuser if "NVFUSER" in name else Inductor
    with fake_cuda.pretend_gpu():
        before = settings(kind())
        assert read_torch_settings().keys() <= before.keys()
        with IN_KEYS[name]:
            after = settings(kind())
            assert {each for each, _ in before.items() ^ after.items()} == {name} and after[name].isascii()
            assert settings(kind()) == after
        assert settings(kind()) == before  # though torch takes it for a user's value from now on


LEFT_OUT = {
    Inductor: ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "NVFUSER_ENABLE"),
    NvFuser: ("NVFUSER_MASTER_PORT", "NVFUSER_DUMP", "TORCHINDUCTOR_MAX_AUTOTUNE"),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_other_variables_are_not_in_its_key(kind):
    with fake_cuda.pretend_gpu():
        before = settings(kind())
        with mock.patch.dict(os.environ, dict.fromkeys(LEFT_OUT[kind], "1")):
            assert settings(kind()) == before


def test_passes_are_compared_by_their_uuids():
    keys = []
    for answer in ("one", "one", b"one", "two"):
        with INDUCTOR.patch(joint_custom_pre_pass=Pass(answer)):
            keys.append(settings(Inductor())[f"{CONFIG}.joint_custom_pre_pass"])
    assert keys[0] == keys[1] and len({*keys}) == 3


def test_a_variable_that_was_changed_is_not_like_one_that_was_so_from_the_beginning(monkeypatch):
    name = "TORCHINDUCTOR_MAX_AUTOTUNE"
    monkeypatch.delenv(name, raising=False)
    found = []
    for at_first, now in itertools.product(({}, {name: "0"}, {name: "1"}), ({}, {name: "0"}, {name: "1"})):
        monkeypatch.setattr(settings_module, "VARIABLES_AT_START", at_first)
        with mock.patch.dict(os.environ, now):
            found.append(list(settings_module.read_variables((name,), (), ("_",))))
    assert (found[0], found[2], found[4]) == ([], [(name, "'1' (at first None)")], [(name, "'0'")])
    assert len(set(map(tuple, found))) == 9


NAMELESS = {
    "none": Pass(None),
    "object": Pass(object()),
    "raises": Pass(lambda: 1 / 0),
    "class": Pass,
    "lambda": lambda graph: None,
}


@pytest.mark.parametrize("own", NAMELESS.values(), ids=NAMELESS)
def test_nothing_is_shared_with_a_pass_that_does_not_say_what_it_is(own):
    for name in ("post_grad_custom_pre_pass", "pre_grad_custom_pass", "_post_fusion_custom_pass"):
        with INDUCTOR.patch({name: own}), pytest.raises(Declined, match=f"TorchInductor's setting {name} is a"):
            Inductor().environment()


@pytest.fixture
def compiled(monkeypatch):
    """Reduces TorchInductor to its front end, which fixes a region's default dtype as all of it does, in milliseconds.

    Returns a list of the settings at each compile. Regions that Thunder compiles without fusioncache run op by op.
    """
    found = []

    def compile_(self, graph, args):
        found.append(settings(self))
        traced = make_fx(torch_function(bind(graph)))(*args)
        return lambda args: traced(*args)

    monkeypatch.setattr(Inductor, "compile", compile_)
    monkeypatch.setattr(executor, "best_backend", lambda device: "eager")
    return found


def compile_(function: Callable[..., Any], cache: fusioncache.Cache) -> Any:
    """Returns a user's function, compiled anew as if it were another model's."""
    return compile_with(lambda *args: function(*args), "inductor", cache)[0]


def make_numbers(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two numbers, a quotient of integers, halves."""
    halves = torch.where(mask, 1.0, 2.0).to(torch.bfloat16) * 0.3
    return torch.where(mask, 0.0, float("-inf")) * 2, (mask.long() + 2) / (mask.long() + 3), halves


def test_models_under_each_default_dtype_get_what_plain_thunder_gives(compiled, cache):
    mask = torch.ones(3, 4, dtype=torch.bool).tril()
    for dtype in ("float32", "float64", "bfloat16", "float32"):
        with apply_torch_settings({"torch.default_dtype": f"torch.{dtype}"}):
            expected, results = compile_plain(make_numbers)(mask), compile_(make_numbers, cache)(mask)
        assert are_same(list(results), list(expected))
    assert (cache.stats().hits, len(compiled), dict(cache.stats().bypasses)) == (1, 3, {})


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 3.0)


def test_a_new_layout_is_compiled_under_the_settings_of_its_call_and_shared_with_these(compiled, cache):
    x = torch.randn(3, 4)
    turned, early = x.mT.contiguous().mT, compile_(scaled, cache)
    early(x)
    with INDUCTOR.patch(size_asserts=False):
        early(turned)
        assert [line.get("torch._inductor.config.size_asserts") for line in compiled] == [None, "False (default True)"]
        compile_(scaled, cache)(turned)
        assert len(compiled) == 2
        compile_(scaled, cache)(x)
        assert len(compiled) == 3
    compile_(scaled, cache)(turned)
    assert len(compiled) == 4


def test_regions_stay_as_thunder_made_them_under_a_pass_that_cannot_be_compared(compiled, cache):
    x = torch.randn(3, 4)
    early = compile_(scaled, cache)
    early(x)
    with INDUCTOR.patch(pre_grad_custom_pass=lambda graph: None), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert torch.equal(compile_(scaled, cache)(x), scaled(x))
        assert torch.equal(early(x.mT.contiguous().mT), scaled(x))
    reason = "TorchInductor's setting pre_grad_custom_pass is a function without a uuid"
    assert cache.stats().bypasses == {reason: 2}
    assert len(compiled) == 1


def test_what_is_compiled_ahead_is_for_the_settings_of_who_asked(tmp_path, monkeypatch):
    here = read_torch_settings()
    theirs = {"torch.default_dtype": "torch.bfloat16", "torch.float32_matmul_precision": "high"}
    before, after, others = (Process(tmp_path, PersistentEager({"machine": name})) for name in ("old", "new", "new"))
    with apply_torch_settings(theirs):
        before.run(make_region(), X, Y)
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: PersistentEager({"machine": "new"}))
    (entry,) = before.cache.store.entries()
    store = Store.open(tmp_path)
    task = read_request(store, entry)
    assert EntryCompiler(store).compile(task) == TaskOutcome("compiled")
    assert read_torch_settings() == here
    others.run(make_region(), X, Y)
    with apply_torch_settings(theirs):
        after.run(make_region(), X, Y)
    assert (others.loaded, after.loaded) == ([False], [True])
