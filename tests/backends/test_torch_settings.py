"""Settings of torch, of TorchInductor and of the process: each is in the key, and only code made under it is met."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import fake_cuda
import pytest
import thunder
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
from store_processes import PersistentEager, Process, X, Y, make_region
from torch._inductor.codegen import common
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.proxy_tensor import make_fx

import fusioncache
from fusioncache.accelerators.precompile import entry_compiler as warmer
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, TaskOutcome, read_request
from fusioncache.backends import torch_settings as settings_module
from fusioncache.backends.bound_symbols import bind, torch_function
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.torch_settings import apply_torch_settings, read_torch_settings
from fusioncache.ir.errors import Declined
from fusioncache.ir.keys import read_changed, read_values, write_values
from fusioncache.observe.explain.difference import compare
from fusioncache.store import Store
from fusioncache.transform import executor


def settings(backend: Any) -> dict[str, str]:
    return read_values(backend.environment()["settings"])


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


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
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch does not say then what its older name for it would be
    try:
        there = read_torch_settings()
        assert there["torch.float32_matmul_precision"] == "no answer: RuntimeError"
    finally:
        torch.backends.cuda.matmul.fp32_precision = here["torch.backends.cuda.matmul.fp32_precision"]
    assert read_torch_settings() == here
    with apply_torch_settings(there):
        assert read_torch_settings() == there
    assert read_torch_settings() == here
    with (
        pytest.raises(ValueError, match=r"torch\.default_dtype cannot be torch\.float3"),
        apply_torch_settings({"torch.default_dtype": "torch.float3"}),
    ):
        pass
    assert read_torch_settings() == here


INDUCTOR, DYNAMO, FUNCTORCH = torch._inductor.config, torch._dynamo.config, torch._functorch.config


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (INDUCTOR, "cpp.enable_floating_point_contract_flag", "fast"),
        (INDUCTOR, "size_asserts", False),
        (INDUCTOR, "post_grad_fusion_options", {"one": {}}),
        (INDUCTOR, "_pre_fusion_custom_pass", ["one"]),
        (FUNCTORCH, "functionalize_rng_ops", True),
        (DYNAMO, "specialize_float", True),
    ],
)
def test_a_setting_of_torchinductor_is_in_its_key(module, name, value):
    before = settings(Inductor())
    setting = f"{module.__name__}.{name}"
    with module.patch({name: value}):
        after = settings(Inductor())
        assert differing(before, after) == {setting}
        assert settings(Inductor()) == after
    assert settings(Inductor()) == before  # though torch takes it for a user's value from now on
    value, default = read_changed(after[setting]) or ("", "")
    (change,) = compare({"settings": write_values(before.items())}, {"settings": write_values(after.items())}).changes
    assert (change.subject, change.a, change.b) == (f"the setting {setting}", default, value)
    (change,) = compare({"settings": write_values(after.items())}, {"settings": write_values(before.items())}).changes
    assert (change.a, change.b) == (value, default)


def test_a_setting_that_is_changed_in_place_is_seen():
    before = settings(Inductor())
    options = INDUCTOR.post_grad_fusion_options
    options["one"] = {}
    try:
        assert differing(before, settings(Inductor())) == {"torch._inductor.config.post_grad_fusion_options"}
    finally:
        del options["one"]
    assert settings(Inductor()) == before


@pytest.mark.parametrize(
    ("kind", "counted", "left_out"),
    [
        (
            Inductor,
            ("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_COMPILE_GRAPH_FORMAT", "CXX", "TRITON_INTERPRET"),
            ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "NVFUSER_ENABLE"),
        ),
        (
            NvFuser,
            ("NVFUSER_ENABLE", "NVFUSER_DISABLE", "PYTORCH_NVFUSER_MAX_REG_COUNT"),
            ("NVFUSER_MASTER_PORT", "NVFUSER_DUMP", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        ),
    ],
)
def test_variables_are_in_the_key_of_their_compiler(kind, counted, left_out, monkeypatch):
    with fake_cuda.pretend_gpu():
        before = settings(kind())
        assert read_torch_settings().keys() <= before.keys()
        for name in left_out:
            monkeypatch.setenv(name, "1")
        assert settings(kind()) == before
        for name in counted:
            monkeypatch.setenv(name, "odd \udcff")
            assert settings(kind())[name] == "'odd \\udcff' (at first None)"


def test_the_number_of_threads_is_in_the_key_of_torchinductor(monkeypatch):
    assert settings(Inductor())["torch.num_threads"] == str(torch.get_num_threads())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert settings(Inductor())["torch.num_threads"] == "77"


def test_a_variable_that_was_changed_is_not_like_one_that_was_so_from_the_beginning(monkeypatch):
    name = "TORCHINDUCTOR_MAX_AUTOTUNE"
    found = []
    for at_first, now in itertools.product(({}, {name: "0"}, {name: "1"}), (None, "0", "1")):
        monkeypatch.setattr(settings_module, "VARIABLES_AT_START", at_first)
        monkeypatch.delenv(name, raising=False)
        if now is not None:
            monkeypatch.setenv(name, now)
        found.append(list(settings_module.read_variables((name,), (), ("_",))))
    assert found[0] == [] and found[4] == [(name, "'0'")]
    assert len(set(map(tuple, found))) == 9


class Pass(CustomGraphPass):
    """Changes nothing, and says that it is what it is told to be."""

    def __init__(self, answer: Any):
        self.answer = answer

    def __call__(self, graph: Any) -> None:
        pass

    def uuid(self) -> Any:
        return self.answer() if callable(self.answer) else self.answer


@pytest.mark.parametrize("name", ["post_grad_custom_post_pass", "joint_custom_pre_pass", "_pre_fusion_custom_pass"])
def test_a_pass_is_in_the_key_by_its_uuid(name):
    def key(answer: Any) -> dict[str, str]:
        with INDUCTOR.patch({name: Pass(answer)}):
            return settings(Inductor())

    assert key("one") == key("one")
    for other in (key(b"one"), key("two"), settings(Inductor())):
        assert differing(key("one"), other) == {f"{INDUCTOR.__name__}.{name}"}


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


def test_passes_that_are_registered_for_a_device_are_in_the_key(monkeypatch):
    before = settings(Inductor())
    monkeypatch.setitem(common.custom_backend_passes, "mine", Pass("one"))
    assert differing(before, settings(Inductor())) == {"torch._inductor.pass_of_mine"}


@pytest.fixture
def compiled(monkeypatch):
    """TorchInductor's front end alone, which fixes a region's default dtype as all of it does, and in milliseconds.

    Gives the settings under which it compiled. What Thunder makes of a region by itself is run op by op.
    """
    found = []

    def compile_(self, graph, args):
        found.append(settings(self))
        bound = bind(graph)
        traced = make_fx(torch_function(bound.bound_symbols, bound.inputs, bound.outputs))(*args)
        return lambda args: traced(*args)

    monkeypatch.setattr(Inductor, "compile", compile_)
    monkeypatch.setattr(executor, "best_backend", lambda device: "eager")
    return found


def compile_(function: Callable[..., Any], cache: fusioncache.Cache | None = None) -> Any:
    """Returns a function of a user's, compiled anew by Thunder as if it were another model's."""
    transforms = [fusioncache.FusionCache(cache=cache, backend="inductor")] if cache else []
    return thunder.jit(lambda *args: function(*args), executors=fusioncache.executors(), transforms=transforms)


@pytest.fixture
def cache() -> fusioncache.Cache:
    return fusioncache.Cache(record=False, store=False)


FUNCTIONS = {
    "two numbers": lambda x, mask: torch.where(mask, 0.0, float("-inf")) * 2,
    "a quotient of integers": lambda x, mask: (mask.long() + 2) / (mask.long() + 3),
    "halves": lambda x, mask: torch.where(mask, 1.0, 2.0).to(torch.bfloat16) * 0.3,
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_models_under_each_default_dtype_get_what_plain_thunder_gives(name, compiled, cache):
    x, mask = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 4, dtype=torch.bool).tril()
    for dtype in DTYPES:
        with apply_torch_settings({"torch.default_dtype": str(dtype)}):
            expected, result = compile_(FUNCTIONS[name])(x, mask), compile_(FUNCTIONS[name], cache)(x, mask)
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)
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
    task = read_request(store, f"{entry.digest}.{entry.backend}")
    assert EntryCompiler(store).compile(task) == TaskOutcome("compiled")
    assert read_torch_settings() == here
    others.run(make_region(), X, Y)
    with apply_torch_settings(theirs):
        after.run(make_region(), X, Y)
    assert (others.told, after.told) == ([False], [True])
