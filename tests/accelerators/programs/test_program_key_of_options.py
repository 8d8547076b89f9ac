"""Each single option of ``thunder.jit``, its executors and transforms, and each of Thunder's tables."""

import pytest
import thunder
import thunder.torch
import torch
from known_keys import few_of_thunder
from program_keys import assert_names, assert_same, changed, jit, key_of
from thunder.core import jit_ext, transforms, utils
from thunder.extend import FUEL_LEVEL, ImplInfo, OperatorExecutor, get_executor
from thunder.torch.langctx import _method_name_to_fn_map as torch_methods
from thunder.transforms.cudagraph import CUDAGraphTransform

import fusioncache
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined

X = torch.zeros(3, 4)


@pytest.fixture
def few():
    """A small part of Thunder stands for the whole, where one key is compared with another one of the same test."""
    patch = few_of_thunder()
    yield
    patch.undo()


def ours(**options):
    return {"transforms": [fusioncache.FusionCache(**{"backend": "eager", **options})]}


class Keyed(thunder.Transform):
    """Says what it depends on."""

    def __init__(self, key):
        self.key = key

    def cache_key(self):
        return self.key


def with_transforms(*more):
    return {"transforms": [fusioncache.FusionCache(backend="eager"), *more]}


def prune(everything):
    from thunder.transforms.prune_prologue_checks import PrunePrologueChecks

    return PrunePrologueChecks(everything)


OPTIONS = {
    "cache": ({"cache": "no caching"}, "the option cache_option: .*CONSTANT_VALUES, .*NO_CACHING"),
    "sharp edges": ({"sharp_edges": "error"}, "the option sharp_edges: .*ALLOW, .*ERROR"),
    "a compile option": ({"nv_enable_matmul": True}, "the option compile_options.nv_enable_matmul: none, True"),
    "executors": ({"executors": ()}, r"the option executors: .*fusioncache.*, \(ad-hoc\) torch python"),
    "backend": (ours(backend="inductor"), "the option transforms.0: .*eager.*, .*inductor"),
    "fold": (ours(fold="triton"), "the option transforms.0: .*fold=auto.*, .*fold=triton"),
    "recompute": (ours(recompute="residual"), "the option transforms.0"),
    "no transform": ({"transforms": []}, "the option transforms.0: .*, none"),
    "one more": (with_transforms(Keyed("1")), "the option transforms.1: none, 1"),
}


@pytest.mark.usefixtures("few")
def test_the_key_names_the_option_that_is_another_one(model):
    key = key_of(jit(model), X)
    for options, expected in OPTIONS.values():
        assert_names(expected, key, key_of(jit(model, **options), X))
    assert key_of(jit(model, **ours(explain=False, verify=True, jobs=0)), X) == key  # which change no trace


@pytest.mark.usefixtures("few")
def test_transforms_are_compared_by_what_they_say_and_in_their_order(model):
    def key(*more):
        return key_of(jit(model, **with_transforms(*more)), X)

    assert key(Keyed("a b"), Keyed("2")) == key(Keyed("a  b"), Keyed("2"))
    assert_names("the option transforms.1: 1, 2", key(Keyed("1"), Keyed("2")), key(Keyed("2"), Keyed("1")))
    assert key(prune(False)) == key(prune(False))
    assert_names("the option transforms.1: .*False.*, .*True", key(prune(False)), key(prune(True)))


class Silent(thunder.Transform):
    """Does not say what it depends on."""


class Undecided(Silent):
    """Does not know."""

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
@pytest.mark.usefixtures("few")
def test_a_transform_that_does_not_say_how_it_is_keyed_refuses_the_program(model, transform, reason):
    with pytest.raises(Declined, match=reason):
        key_of(jit(model, **with_transforms(transform)), X)


def other_silu(a, inplace=False):
    """Stands in for silu."""
    return a


def test_what_an_executor_does_with_an_operation_is_in_the_key(jitted, key):
    torchex = get_executor("torch")
    for entry in (
        ImplInfo(checker=other_silu),
        ImplInfo(execution_transform=other_silu),
        ImplInfo(grad_transform=other_silu),
    ):
        with changed(torchex.implmap, "torch.nn.functional.silu", entry):
            assert_names("the option executors.torch.operations", key, key_of(jitted, X))
    with changed(torchex._lookasides, other_silu, other_silu):
        assert_names("the option executors.torch.lookasides", key, key_of(jitted, X))


@pytest.mark.usefixtures("few")
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


MAP = thunder.torch._torch_to_thunder_function_map
SILU = torch.nn.functional.silu

TABLES = {
    "an entry of somebody else": (MAP, SILU, other_silu, "Thunder's `map.torch.nn.functional.silu"),
    "an entry more": (MAP, other_silu, thunder.torch.silu, "Thunder's `map.*other_silu"),
    "a default lookaside": (
        thunder.core.interpreter._default_lookaside_map,
        other_silu,
        other_silu,
        "Thunder's `thunder.core.interpreter`",
    ),
    "a rule for gradients": (
        transforms._grad_fn_map,
        "torch.nn.functional.silu",
        other_silu,
        "Thunder's `thunder.core.transforms`",
    ),
    "a method of tensors": (
        torch_methods,
        "silu",
        other_silu,
        "Thunder's `thunder.torch.langctx`",
    ),
    "a flag": (utils, "_DEBUG_ASSERTS", 2, "Thunder's `thunder.core.utils`"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_key_names_the_table_of_thunder_that_changed(name, jitted, key):
    owner, entry, value, expected = TABLES[name]
    with changed(owner, entry, value):
        other = key_of(jitted, X)
    assert_names(expected, key, other)


def test_names_of_definitions_tell_functions_apart():
    def name(value):
        definitions = Definitions(Describer())
        with definitions.trusting():
            return definitions.name(value)

    assert name(utils.check) == name(utils.check) != name(utils.check_type)
    assert "core/utils.py" in name(utils.enable_debug_asserts)
    assert name(torch.relu) != name(torch.sin) and name(torch.Tensor.sin) != name(torch.sin)
    assert name(1) != name(1.0) != name(True) and name("1") != name(1) and name(-0.0) != name(0.0)
    assert name({"a": 1, "b": 2}) == name({"b": 2, "a": 1}) != name({"a": 1, "b": 3})
    assert name(thunder.torch.silu) != name(thunder.torch.relu)
    assert name(torch.float32) != name(torch.float64) and name(int | str) != name(int | float)
    assert name(type("V", (str,), {})("1")) != name(type("V", (str,), {})("2"))
    cycle = []
    cycle.append(cycle)
    assert name(cycle) == name(cycle)


def test_a_value_of_thunder_that_cannot_be_described_refuses_the_program(jitted):
    with (
        changed(utils, "somebodys", iter(())),
        pytest.raises(Declined, match=r"^Thunder's modules: "),
    ):
        key_of(jitted, X)


class Halving(Keyed):
    """Puts parameters of another dtype in the place of the model's."""

    def transform_module(self, module):
        for name, parameter in list(module.named_parameters()):
            module._overrides_parameters[name] = torch.nn.Parameter(parameter.detach().to(self.dtype))


@pytest.mark.usefixtures("few")
def test_parameters_that_a_transform_put_in_place_of_the_models_are_in_the_key(model):
    def key(dtype):
        transform = Halving("halving")
        transform.dtype = dtype
        return key_of(jit(model, **with_transforms(transform)), X)

    assert_same(key(torch.float16), key(torch.float16))
    assert_names("`parameters.first.weight`: .*float16.*, .*bfloat16", key(torch.float16), key(torch.bfloat16))


def test_code_of_others_is_in_the_key_unless_its_executor_says_what_it_depends_on():
    class Saying(OperatorExecutor):
        def cache_key(self):
            return "1"

    def may_run(*_):
        return True

    for kind, is_named in ((OperatorExecutor, True), (Saying, False)):
        executor = kind("of_others", version="1")
        executor._implmap["torch.nn.functional.silu"] = ImplInfo(checker=may_run)
        key = key_of(thunder.jit(torch.nn.SiLU(), executors=[executor], **ours()), X)
        assert any("may_run is run by Thunder" in line for line in list_foreign(key)) is is_named


def list_foreign(key):
    """The lines about code of others that Thunder may run."""
    return [line for line in key.texts["function map"].splitlines() if line.startswith("foreign.")]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", ["compile", "sin"])
def test_what_is_in_place_of_torch_compile_derives_nothing(jitted, name, is_there):
    """Lightning puts one there, and Thunder's tables have what they find there, also when ``thunderfx`` took it out."""
    own = getattr(torch, name)

    def of_others(*args):
        return args

    of_others.__wrapped__ = own
    there, key = of_others if is_there else own, key_of(jitted, X)
    with changed(torch, name, there), changed(jit_ext._general_jit_lookaside_map, of_others, jit_ext.wrap_const):
        other = key_of(jitted, X)
        assert other.digest != key.digest
        assert bool(list_foreign(other)) is (name != "compile")
