"""Each outside value that a trace uses is recorded as a read, which differs exactly if the value was changed."""

import collections
import copy
import enum
import functools
import math
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from described import Box
from program_keys import attribute, changed
from recorded_reads import compare, describe_key, record
from torch._dynamo import mutation_guard

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.introspection import MARK
from fusioncache.accelerators.programs.text import Read, find_difference, find_text
from fusioncache.ir.errors import Declined

X = torch.linspace(-1, 1, 8).reshape(2, 4)
pytestmark = pytest.mark.usefixtures("hooks")
SCALE = 2.0
NUMBERS = [1.0, 2.0]
TABLE = {"one": 1.0, "two": 2.0}
FLAGS = {"fast": True}
CHOICES = {"relu", "silu"}
SIZES = {8, 0}
WORDS = ["1", "2"]
SETTINGS = types.SimpleNamespace(gain=0.5)
CONFIG = Box(width=4, factor=1.5, inner={"eps": 0.5})
Kind = enum.Enum("Kind", "PLAIN DOUBLE", module=__name__)
KIND = Kind.PLAIN


def helper(x, amount=1.0, *, shift=0.25):
    return x * amount + shift


def decorate(function):
    @functools.wraps(function)
    def doubled(*args):
        return function(*args) * 2

    return doubled


@decorate
def decorated(x):
    return x + 1


class Base:
    offset = 0.5

    def shifted(self, x):
        return x + self.offset


class Derived(Base):
    def __init__(self, factor):
        self.factor = factor

    @property
    def twice(self):
        return self.factor * 2

    @staticmethod
    def halved(x):
        return x * 0.5

    @classmethod
    def named(cls, x):
        return x + cls.offset

    def __call__(self, x):
        return self.named(self.halved(self.shifted(x))) * self.twice


PARTIAL = functools.partial(helper, amount=4.0)
REGISTRY = {"act": F.relu}
OBJECT = Derived(1.5)


def look_around(x):
    """Reads one of everything."""
    x = x * SCALE + sum(NUMBERS) + TABLE["two"] + len(NUMBERS)
    x = x + sum(list(map(int, WORDS))) + sum(SIZES) + vars(SETTINGS)["gain"]
    x = helper(x) + PARTIAL(x) + decorated(x)
    x = REGISTRY["act"](x) + F.silu(x) + torch.tanh(x) + OBJECT(x)
    from math import e

    if "silu" in CHOICES:
        x = x * sorted(SIZES)[-1] + e
    if KIND is Kind.DOUBLE:
        x = x * 2
    if FLAGS.get("fast") and CONFIG.width > 2:
        x = x * CONFIG.factor + CONFIG.inner["eps"] + math.pi
    if os.environ.get("OF_A_TEST", "no") == "yes":
        x = x + 1

    def nested(y):
        return y + 0.125

    counted = [nested(x) for _ in range(2)]
    counted.append(x)
    pairs = collections.OrderedDict(first=x)
    pairs["second"] = counted[0]
    return functools.reduce(lambda a, b: a + b, [*counted, *pairs.values()])


class Model(torch.nn.Module):
    kind = "plain"

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    @property
    def scale(self):
        return SCALE * 2

    def forward(self, x):
        self.count = self.count + 1
        x = self.layer(x) * self.scale
        return F.relu(x) if self.kind == "plain" else x


@pytest.fixture(scope="module")
def recorded(hooks):
    """The reads of a function and of a module, each with the traced object."""
    model = Model()
    return {"function": (record(look_around, X).reads(), look_around), "module": (record(model, X).reads(), model)}


def another(x, *args, **kwargs):
    return x


THIS, MODULES = sys.modules[__name__], torch.nn.modules.module
GET = collections.abc.Mapping.get
# More is in tests/programs/test_program_mutations.py.
# Changes: the read that names it, the owner of the attribute or item, its name, and the new value.
CHANGES = {
    "the type of a number": ("global SCALE", THIS, "SCALE", 2),
    "an item of a list": ("global NUMBERS", THIS, "NUMBERS", [1.0, 3.0]),
    "a default": ("global helper", helper, "__defaults__", (2.0,)),
    "an argument of a partial": ("global PARTIAL", PARTIAL.keywords, "amount", 5.0),
    "a function in a registry": ("global REGISTRY", REGISTRY, "act", F.gelu),
    "an attribute of an object": ("global OBJECT", OBJECT, "factor", 2.5),
    "an attribute on top of a class's": ("global OBJECT", OBJECT, "offset", 0.5),
    "an attribute of a class in the MRO": ("global OBJECT", Base, "offset", 0.75),
    "a property": ("global OBJECT", Derived, "twice", property(another)),
    "a member of an enumeration": ("global KIND", THIS, "KIND", Kind.DOUBLE),
    "an attribute that is compared": ("global CONFIG", CONFIG, "factor", 2.0),
    "a constant of a module": ("attribute math.pi", math, "pi", 3.0),
    "which module a name stands for": ("global F", THIS, "F", torch),
    "what is imported on the way": ("attribute math.e", math, "e", 3.0),
    "an item of a set": ("global SIZES", THIS, "SIZES", {8, 1}),
    "what map takes": ("global WORDS", THIS, "WORDS", ["1", "3"]),
    "what map applies": ("builtin int", THIS, "int", float),
    "what vars finds": ("global SETTINGS", SETTINGS, "gain", 0.75),
    "a choice": ("global CHOICES", THIS, "CHOICES", {"relu"}),
    "the environment": ("attribute os.environ", os, "environ", dict(os.environ)),
    "a function of Python's library": ("function collections.abc:Mapping.get", GET, "__defaults__", (0,)),
}
OF_MODULE = {
    "what a property reads": ("global SCALE", THIS, "SCALE", 3.0),
    "a function of torch's modules": ("attribute torch.nn.functional.linear", F, "linear", F.bilinear),
    "a hook for all modules": (
        "global torch.nn.modules.module._global_forward_hooks",
        MODULES._global_forward_hooks,
        0,
        another,
    ),
    "a class that is asked for": ("global torch.nn.modules.module.Buffer", MODULES, "Buffer", torch.nn.Parameter),
    "whether torch traces": (
        "query torch._C._get_tracing_state()",
        torch._C,
        "_get_tracing_state",
        torch._C._is_tracing,
    ),
}
CASES = [("function", what) for what in CHANGES] + [("module", what) for what in OF_MODULE]


@pytest.mark.parametrize(("subject", "what"), CASES, ids=lambda each: str(each).replace(" ", "-"))
def test_what_is_changed_is_the_read_that_differs(subject, what, recorded):
    reads, function = recorded[subject]
    assert compare(reads, function) is None
    expected, owner, name, value = (CHANGES if subject == "function" else OF_MODULE)[what]
    with changed(owner, name, value):
        differing = compare(reads, function)
    kind, _, name = expected.partition(" ")
    assert differing in (expected, f"{kind} {__name__}.{name}")
    assert compare(reads, function) is None


def test_what_a_trace_cannot_tell_apart_is_no_difference(recorded, monkeypatch):
    reads, function = recorded["function"]
    monkeypatch.setattr(THIS, "sum", sum, raising=False)  # in the module, where it was a builtin
    monkeypatch.setattr(THIS, "unread", 1, raising=False)
    monkeypatch.setattr(torch, "unread", 1, raising=False)
    monkeypatch.setattr(THIS, "TABLE", dict(TABLE))
    monkeypatch.setenv("UNREAD", "1")
    assert compare(reads, function) is None


ONE = OTHER = torch.nn.Identity()
NAMESPACE: dict[str, float] = {}


def set_one_and_ask_other(x):
    ONE.factor = 2.0
    return x * OTHER.factor


def test_an_equal_module_is_a_difference_where_the_same_one_was_read(monkeypatch):
    monkeypatch.setattr(ONE, "factor", 1.0, raising=False)
    reads = record(set_one_and_ask_other, X).reads()
    ONE.factor = 1.0
    assert not compare(reads, set_one_and_ask_other)
    monkeypatch.setitem(globals(), "OTHER", copy.copy(ONE))
    assert compare(reads, set_one_and_ask_other) == "global test_recorder.OTHER"


def set_one_and_ask_its_namespace(x):
    ONE.factor = 2.0
    return x * NAMESPACE["factor"]


@pytest.mark.parametrize("is_one", [True, False])
def test_an_equal_dictionary_is_a_difference_where_the_attributes_of_a_module_were_read(monkeypatch, is_one):
    monkeypatch.setattr(ONE, "factor", 1.0, raising=False)
    both = vars(ONE), dict(vars(ONE))
    monkeypatch.setitem(globals(), "NAMESPACE", both[not is_one])
    reads = record(set_one_and_ask_its_namespace, X).reads()
    ONE.factor = 1.0
    assert not compare(reads, set_one_and_ask_its_namespace)
    monkeypatch.setitem(globals(), "NAMESPACE", both[is_one])
    assert compare(reads, set_one_and_ask_its_namespace) == "global test_recorder.NAMESPACE"


def import_and_ask(x):
    import settings
    from settings import FACTOR

    return x * FACTOR * settings.FACTOR


def test_another_module_under_an_imported_name_is_a_difference(monkeypatch):
    for number, name in enumerate(("settings_a", "settings_b")):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].FACTOR = number
    monkeypatch.setitem(sys.modules, "settings", sys.modules["settings_a"])
    reads = record(import_and_ask, X).reads()
    assert not compare(reads, import_and_ask)
    monkeypatch.setitem(sys.modules, "settings", sys.modules["settings_b"])
    assert compare(reads, import_and_ask) == "import settings"
    monkeypatch.delitem(sys.modules, "settings")
    assert compare(reads, import_and_ask) == "import settings"


def test_a_module_that_was_not_imported_is_a_difference_and_stays_so():
    read = Read("attribute", "antigravity.webbrowser", "nothing")
    found = find_difference([read], Describer())
    assert found is not None and (found.read, found.now) == (read, None)
    assert "antigravity" not in sys.modules


def test_a_name_that_is_missing_is_found_as_nothing():
    assert find_text("attribute", "math.no_such_name", Describer()) == "nothing"
    assert find_text("global", "math.no_such_name", Describer()) == "nothing"
    assert find_text("function", "math:no_such_name", Describer()) is None


def test_only_listed_questions_are_asked(monkeypatch):
    assert find_text("query", "torch.get_default_dtype()", Describer()) == "torch.float32"
    assert find_text("query", 'torch.is_autocast_enabled("cpu")', Describer()) == "False"
    assert find_text("query", "torch.seed()", Describer()) is None
    assert find_text("query", "os.getpid()", Describer()) is None
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float32)
    assert find_text("query", "torch.get_default_dtype()", Describer()) is None


def test_a_namespace_with_builtins_of_its_own_is_none_of_a_module(monkeypatch):
    assert introspection.find_builtins({"__builtins__": __builtins__}) is introspection.find_builtins({})
    with pytest.raises(LookupError):
        introspection.find_builtins({"__builtins__": {"len": len}})


class Making(torch.nn.Module):
    """Makes a module each time, as litgpt's models do."""

    def forward(self, x):
        return torch.nn.Identity()(x) * 2


@pytest.fixture
def tag(monkeypatch):
    """The function that tags modules when Dynamo first runs; its effects are undone before and after the test."""
    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, introspection.find_original(vars(torch.nn.Module)[name]))
    monkeypatch.setattr(torch.nn.Module, MARK, True, raising=False)
    monkeypatch.delattr(torch.nn.Module, MARK)
    return mutation_guard.install_generation_tagging_init


def describe_making():
    return dict(describe_key(Making()).list_classes())


def test_a_model_is_described_and_reads_as_before_dynamo_ran(tag):
    before, reads = describe_making(), record(Making(), X).reads()
    tag()
    assert torch.nn.Module.__init__.__qualname__.endswith("patched_init")
    assert describe_making() == before
    assert record(Making(), X).reads() == reads != ()


@pytest.mark.parametrize("name", ["__init__", "__setstate__"])
def test_another_function_is_another_class_whether_dynamo_ran_or_not(name, tag, monkeypatch):
    before = describe_making()
    original = vars(torch.nn.Module)[name]
    monkeypatch.setattr(torch.nn.Module, name, lambda self, *args, **kwargs: original(self, *args, **kwargs))
    other = describe_making()
    tag()
    assert describe_making() == other != before


def test_tags_of_others_are_another_class_and_are_read(tag, monkeypatch):
    before = describe_making()
    tag()
    wrapper = vars(torch.nn.Module)["__init__"]
    other_code = wrapper.__code__.replace(co_consts=(*wrapper.__code__.co_consts, 1))
    cell = wrapper.__closure__[0]
    for owner, name, value in ((wrapper, "__code__", other_code), (cell, "cell_contents", lambda self: None)):
        with attribute(owner, name, value):
            assert describe_making() != before
        assert describe_making() == before
    monkeypatch.setattr(mutation_guard.GenerationTracker, "tag", classmethod(lambda cls, module: None))
    assert describe_making() != before
    assert "torch._dynamo.mutation_guard.GenerationTracker" in {each.name for each in record(Making(), X).reads()}


def test_what_asks_whether_dynamo_ran_or_fills_its_tables_is_not_kept(tag):
    table, key = mutation_guard.ExactWeakKeyDictionary(), torch.nn.Identity()

    def ask(x):
        return x * 2 if getattr(torch.nn.Module, MARK, True) else x

    def fill(x):
        table[key] = 1
        return x

    for happens in (lambda: None, tag):
        happens()
        with pytest.raises(Declined, match=f"{MARK} of .* has no value to compare: it says that Dynamo ran"):
            record(ask, X).reads()
    with pytest.raises(Declined):
        record(fill, X).reads()
