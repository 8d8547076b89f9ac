"""Compiling ahead of use: requests of other versions or machines are compiled for this one, and none twice."""

from dataclasses import replace

import pytest
import torch
from drawn_regions import draw
from signing_keys import make_signing_key
from store_processes import PersistentEager, Process, X, Y, fill_store, make_region, make_unary_region

import fusioncache
from fusioncache.accelerators.precompile import entry_compiler as warmer
from fusioncache.accelerators.precompile.entry_compiler import make_arguments
from fusioncache.backends.api import make_backend
from fusioncache.cache.exchange import pull, push
from fusioncache.cache.executable import REGION, REQUEST
from fusioncache.cache.relatives import RELATIVES, encode_relatives
from fusioncache.ir import GeneralInstance, Graph, NumberType, Ref, TensorType
from fusioncache.ir.keys import write_layouts
from fusioncache.ir.template import ArgumentLayouts, Request, encode_region, encode_request, layouts_of
from fusioncache.store import Store
from fusioncache.store.remote import Remote
from fusioncache.store.signing import put_key
from fusioncache.template.canonical import canonicalize
from fusioncache.template.generalization import identity_instance, in_order_of_template, make_family
from fusioncache.template.key import make_key
from fusioncache.template.writer import instance_of

PLACE: ArgumentLayouts = ((X.shape, X.stride()),)


def put(store: Store, graph: Graph, asked: Graph | None = None, **more: bytes) -> None:
    """Stores an entry of another environment for a graph; the request in it may be for another graph."""
    canonical, layouts = canonicalize(graph), PLACE * len(graph.inputs)
    key = make_key(canonical.graph, {"machine": "elsewhere", "layout": write_layouts(layouts)})
    request = encode_request(Request(canonicalize(asked or graph).graph, layouts, "eager", {}))
    instance = instance_of(graph, canonical.binding)
    if RELATIVES in more:
        instance = identity_instance(in_order_of_template(instance))
    assert store.save(key, "eager", {REGION: encode_region(instance), REQUEST: request, **more})


def relate(*regions: Graph) -> dict[str, bytes]:
    """Returns the artifact of an entry that was generalized with these regions; the last one gives its order."""
    own = [instance_of(region, canonicalize(region).binding) for region in regions]
    return {RELATIVES: encode_relatives(tuple(in_order_of_template(each) for each in own), own[-1])}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> PersistentEager:
    """The backend of this process, on another machine than the processes that filled the store."""
    backend = PersistentEager({"machine": "there"})
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: backend)
    return backend


def test_a_job_finds_all_that_was_compiled_ahead_and_it_is_not_compiled_again(tmp_path, here):
    fill_store(tmp_path, {"machine": "a"}, {"machine": "b"}, {"versions": "old"})
    dry = fusioncache.warm(tmp_path, dry_run=True, jobs=2)
    assert (dry.ready, dry.compiled) == (0, 2) and not here.compiled and len(Store.open(tmp_path).entries()) == 6
    warmed = fusioncache.warm(tmp_path)
    assert (warmed.known, warmed.templates, warmed.ready, warmed.compiled, warmed.refused) == (6, 2, 0, 2, {})
    job = Process(tmp_path, PersistentEager({"machine": "there"}))
    assert torch.equal(job.run(make_region(), X, Y)[1], Y - X)
    assert torch.equal(job.run(make_unary_region(), X)[0], X.cos())
    assert job.loaded == [True, True] and not job.backend.compiled
    again = fusioncache.warm(tmp_path)
    assert (again.known, again.ready, again.compiled) == (8, 2, 0) and len(here.compiled) == 2


def test_what_could_not_be_kept_this_time_is_tried_again(tmp_path, here):
    first = Process(tmp_path, PersistentEager(refuse="busy", lasting=False))
    first.run(make_unary_region(), X)
    assert first.ledger.stats().unkept == {"cannot be stored: busy": 1} and not first.cache.store.entries()
    fill_store(tmp_path)
    here.refuse, here.lasting = "busy", False
    assert fusioncache.warm(tmp_path).refused == {"cannot be stored: busy": 2}
    here.refuse = None
    assert fusioncache.warm(tmp_path).compiled == 2


def fail(path, here, patch):
    compile_ = here.compile
    patch.setattr(here, "compile", lambda graph, args: 1 / 0 if graph == make_unary_region() else compile_(graph, args))


def damage(path, here, patch):
    store = Store.open(path)
    entry = store.entry(store.entries()[0].digest, "eager")
    (part,) = [part for part in entry.artifacts if part.name == REGION]
    (path / "objects" / part.object[:2] / part.object).write_bytes(b"{}")


def put_wrong_relatives(path, here, patch):
    """Stores relatives that are unreadable, of another region, of one other size only, or in another region's order."""
    order = encode_relatives(
        (make_unary_region("abs"),), instance_of(make_region(), canonicalize(make_region()).binding)
    )
    wrong = relate(make_unary_region("sin")), relate(draw("log(x)", x=(4, 3))), {RELATIVES: order}
    for name, relatives in zip(("tan", "exp", "log", "abs"), ({RELATIVES: b"{}"}, *wrong), strict=True):
        put(Store.open(path), make_unary_region(name), **relatives)


REFUSALS = {
    "the backend refuses": (
        lambda path, here, patch: patch.setattr(here, "refuse", "no such kernel"),
        ({"cannot be stored: no such kernel": 2}, 0, 0),
    ),
    "a compile fails": (fail, ({"failed: ZeroDivisionError": 1}, 1, 1)),
    "a region is damaged": (damage, ({"damaged": 1}, 1, 1)),
    "the request of another entry": (
        lambda path, here, patch: put(Store.open(path), make_unary_region("tan"), make_unary_region("sin")),
        ({"damaged": 1}, 2, 1),
    ),
    "wrong relatives": (put_wrong_relatives, ({"damaged": 4}, 2, 4)),
    "another device": (
        lambda path, here, patch: put(Store.open(path), make_unary_region(device="xpu")),
        ({"other device type: xpu": 1}, 2, 0),
    ),
    "an older version": (
        lambda path, here, patch: Store.open(path).save(make_key(make_unary_region(), {}), "eager", {REGION: b"{}"}),
        ({"stored without its compile request, by an older version": 1}, 2, 0),
    ),
    "no backend": (
        lambda path, here, patch: patch.setattr(warmer, "make_backend", lambda name, **more: make_backend("other")),
        ({"no backend eager here": 2}, 0, 0),
    ),
    "a backend that stores nothing": (
        lambda path, here, patch: patch.setattr(warmer, "make_backend", make_backend),
        ({"backend eager stores nothing": 2}, 0, 0),
    ),
    "a store that takes nothing": (
        lambda path, here, patch: patch.setattr(Store, "save", lambda *args, **more: False),
        ({"not stored": 2}, 0, 2),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_costs_only_itself(tmp_path, here, monkeypatch, name):
    change, expected = REFUSALS[name]
    fill_store(tmp_path)
    change(tmp_path, here, monkeypatch)
    warmed = fusioncache.warm(tmp_path)
    assert (warmed.refused, warmed.compiled, warmed.failed) == expected
    if here.refuse:  # which is not tried again
        assert fusioncache.warm(tmp_path).refused == warmed.refused and len(here.compiled) == 2


def test_what_came_is_compiled_only_while_its_key_is_trusted(tmp_path, here, monkeypatch):
    key = make_signing_key("ci")
    monkeypatch.setenv("FUSIONCACHE_TRUST", key.public)
    fill_store(tmp_path / "made")
    push(Store.open(tmp_path / "made", remote=""), Remote(str(tmp_path / "remote")), key=key)
    there = Store.open(tmp_path / "there", remote="")
    assert pull(there, Remote(str(tmp_path / "remote"))).entries == 2
    put_key(key.public, "ci", "revoked")
    warmed = fusioncache.warm(there)
    assert (warmed.compiled, warmed.failed, warmed.refused) == (0, 0, {warmer.UNTRUSTED: 2})
    put_key(key.public, "ci", "trusted")
    assert fusioncache.warm(there).compiled == 2


def test_the_options_of_the_backend_come_back(tmp_path, monkeypatch):
    made = []
    options = {"enable": ("b", "a"), "mode": None}
    process = Process(tmp_path)
    monkeypatch.setattr(process.backend, "options", lambda: options)
    process.run(make_unary_region(), X)

    def make(name, **options):
        made.append((name, options))
        return PersistentEager({"machine": "b"})

    monkeypatch.setattr(warmer, "make_backend", make)
    assert fusioncache.warm(tmp_path).compiled == 1
    assert made == [("eager", options)]


@pytest.mark.parametrize(("machine", "result"), [("here", "compiled"), ("there", "refused")])
def test_a_worker_under_other_settings_compiles_nothing_for_a_call(tmp_path, monkeypatch, machine, result):
    fill_store(tmp_path / "asking")
    asking, store = Store.open(tmp_path / "asking"), Store.open(tmp_path / "store")
    backend = PersistentEager({"machine": machine})
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: backend)
    for entry in asking.entries():
        task = replace(warmer.read_request(asking, entry), digest=entry.digest)
        assert warmer.EntryCompiler(store).compile(task).result == result
    assert len(backend.compiled) == len(store.entries()) == (2 if result == "compiled" else 0)


def test_what_no_code_for_any_sizes_serves_is_compiled_alone_in_its_own_order(tmp_path, here):
    other, region = (draw("sub(y, x)", "sin(x)", y=(size, 3), x=(size, 3)) for size in (4, 2))
    put(Store.open(tmp_path), region, **relate(other, region))
    assert fusioncache.warm(tmp_path).compiled == 1 and here.compiled == [region]
    again = fusioncache.warm(tmp_path)
    assert (again.ready, again.compiled, sum(again.refused.values())) == (1, 0, 1) and len(here.compiled) == 1


@pytest.mark.parametrize("swapped", [False, True])
def test_it_is_compiled_in_the_order_of_the_region_that_asks(tmp_path, monkeypatch, swapped):
    region, (x, y) = make_region(swapped=swapped), (X, Y.T.contiguous().T)  # y has another layout, so that it shows
    inputs = (y, x) if swapped else (x, y)
    process, binding = Process(tmp_path), canonicalize(region).binding
    monkeypatch.setattr(warmer, "make_backend", lambda name, **options: process.backend)
    instance = instance_of(region, binding)
    made = GeneralInstance(make_family([in_order_of_template(instance)]).general, ())
    request = process.executable(region).foresee(layouts_of([inputs[i] for i in binding.arguments]), instance, made)
    task = warmer.CompileTask(request.request, request.instance, request.key.digest, as_general=request.as_general)
    assert warmer.EntryCompiler(process.cache.store).compile(task).result == "compiled"
    assert process.backend.compiled == [region]
    process.run(region, *inputs)
    assert process.loaded == [True]


DTYPES = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "complex64", "int64", "int32", "uint8", "bool8"]
PLACES = [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 3), (8, 2)), ((2, 3), (0, 1)), ((0, 3), (3, 1)), ((), ())]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_tensor_lies_where_it_should(dtype, place):
    shape, strides = place
    (made,) = make_arguments(Graph((TensorType(dtype, shape, "cpu"),), (), (0,)), (place,))
    assert (tuple(made.shape), made.stride(), made.dtype) == (
        shape,
        strides,
        getattr(torch, dtype.replace("bool8", "bool")),
    )
    assert made.device.type == "cpu"
    if made.dtype.is_floating_point and made.numel():
        assert made.double().min() > 0.4 and made.double().max() <= 1


@pytest.mark.parametrize(("name", "value"), [("add", 1), ("take", 0), ("index_put", 0), ("embedding", 0)])
def test_integers_that_may_be_places_are_zero(name, value):
    graph = draw(f"{name}(x, at)", x=(2, 3), at=TensorType("int64", (4,), "cpu"))
    assert set(make_arguments(graph, (((2, 3), (3, 1)), ((4,), (1,))))[1].tolist()) == {value}


def test_numbers_are_one_but_for_sizes():
    types = (
        *map(NumberType, ("int", "float", "bool", "complex", "int")),
        TensorType("float32", (Ref(4), Ref(6)), "cpu"),
    )
    *numbers, tensor = make_arguments(Graph(types, (), (5,), sizes=1), (None, None, None, None, None, ((7, 2), (2, 1))))
    assert numbers == [1, 1.0, True, 1 + 0j, 7]
    assert [type(number) for number in numbers] == [int, float, bool, complex, int]
    assert tuple(tensor.shape) == (7, 2)


def test_random_numbers_of_a_process_stay_as_they_are():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, other = (make_arguments(make_region(), (((2, 3), (3, 1)),) * 2) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one[0], other[0]) and not torch.equal(one[0], one[1])
