"""Changes since the first lengths are noticed at a further one: in the same process, and in a later one."""

import contextlib
import shutil
from collections import OrderedDict
from unittest.mock import Mock

import block_models
import pytest
import thunder
import torch
from blank_programs import blank
from compared_models import ComparedModel, are_equal, train
from models import Blocks
from signing_keys import make_signing_key
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.layers import session
from fusioncache.accelerators.programs import build, key
from fusioncache.accelerators.programs.build import write_program
from fusioncache.accelerators.programs.template_loader import find_references
from fusioncache.accelerators.sizes import lengths
from fusioncache.accelerators.sizes.families import Family, find_families, store_family
from fusioncache.accelerators.sizes.lengths import Lengths
from fusioncache.accelerators.sizes.values import find_tensors
from fusioncache.backends.eager import Eager
from fusioncache.cache.exchange import pull, push
from fusioncache.ir import Key
from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.keys import read_key
from fusioncache.store import Store, read_through
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.store.remote import Remote
from fusioncache.store.signing import put_key
from fusioncache.template.key import program_key_of

SCALE = 2.0
FIRST, SECOND = 64, 96


def scale(x):
    return x * 2.0


class Model(torch.nn.Module):
    """Attention with positions, a rotary table cut to the length, a mask made of it, and a product over all tokens."""

    factor = 3.0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50)
        self.register_buffer("table", torch.randn(512, 16))
        self.dropout = torch.nn.Dropout(0.0)
        self.power = 2
        self.options = {"scale": 2.0, "limits": [300, 400]}

    def forward(self, tokens, weights=None):
        batch, length = tokens.shape
        x = self.embedding(tokens) * torch.cos(self.table[:length]) + torch.arange(length)[:, None]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        x = torch.nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)[:, 0]
        x = self.dropout(x) * self.options["scale"] * self.factor**self.power
        x = scale(x) * SCALE if length < self.options["limits"][0] else x
        x = x if weights is None else x * weights[..., None]
        return self.head(x.reshape(batch * length, 16)).view(batch, length, -1)


def tokens(length, batch=2):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(length))


def counts(transform):
    stats = transform.stats()
    return stats.programs_filled, stats.programs_loaded, dict(stats.passes_repeated)


def make_known(directory):
    model = Model()
    compiled, transform = compile_anew(model, directory)
    for length in (FIRST, SECOND):
        train(compiled, tokens(length))
    return model, compiled, transform


def list_slots(directory):
    return [each for each in Store.open(directory, remote="").entries() if each.backend in FAMILY_SLOTS]


@pytest.fixture(scope="module", name="stored")
def _stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lengths") / "store"
    make_known(directory)
    return directory


@pytest.fixture(name="store")
def _store(stored, tmp_path):
    """Returns a copy of the store, where ``ComparedModel`` looks."""
    return shutil.copytree(stored, tmp_path / "store")


@pytest.fixture(scope="module", name="pair")
def _pair(tmp_path_factory):
    both = ComparedModel(Model(), tmp_path_factory.mktemp("pair"))
    for length in (FIRST, SECOND):
        train(both.compiled, tokens(length))
    return both


@pytest.mark.parametrize("fills", [True, False])
def test_the_program_is_thunders_to_the_letter(tmp_path, monkeypatch, fills):
    """Compares traces with names of templates, graphs and regions: of filled in programs, and of Thunder's passes."""
    model, *pair = make_known(tmp_path / "store")
    if not fills:
        monkeypatch.setattr(Lengths, "fill", lambda *_: None)
    own = compile_anew(model, tmp_path / "own", sizes="static")
    texts, results = [], []
    for compiled, transform in (pair, own):
        with monkeypatch.context() as patch:
            if fills and transform is pair[1]:
                patch.setattr(build, "compile_trace", None)  # that was done at the second length
            with without_interpreter() if transform is pair[1] else contextlib.nullcontext():
                results.append(train(compiled, tokens(200)))
        entry = thunder.compile_stats(compiled).interpreter_cache[-1]
        written = write_program(entry, model, find_references(transform.calls()))
        texts.append([blank(written), sorted(written.templates())])
    assert texts[0] == texts[1]
    assert are_equal(*results)
    stats = pair[1].stats()
    assert (stats.programs_filled, stats.programs_replayed) == (int(fills), int(not fills))


def switch(change, value, former):
    """Changes a setting of torch, and returns a function that undoes that."""
    change(value)
    return lambda: change(former)


CHANGES = {
    "whether gradients are computed": lambda *_: switch(torch.set_grad_enabled, False, True),
    "the default dtype": lambda *_: switch(torch.set_default_dtype, torch.float64, torch.float32),
    "an attribute": lambda model, patch: patch.setattr(model, "power", 3),
    "the type of a parameter": lambda model, _: model.head.double().float,
    "a global": lambda _, patch: patch.setitem(globals(), "SCALE", 5.0),
    "the code of a function": lambda _, patch: patch.setattr(scale, "__code__", (lambda x: x * 9.0).__code__),
}
"""Each with a function that changes it, and returns a function that undoes that, unless ``patch`` does.

Data about a length is stored under the key of a program without sizes, with its reads. Other tests cover their
contents: ``test_program_mutations.py``, ``test_last_key.py``. These changes show that both are checked.
"""
LATER = {
    **{name: CHANGES[name] for name in ("the default dtype", "an attribute", "a global")},
    "the version of the format": lambda _, patch: patch.setattr(key, "FAMILY_FORMAT", key.FAMILY_FORMAT + 1),
    "what decides": lambda _, patch: patch.setattr(thunder.executors.utils, "_fused_sdp_choice", lambda *_: "other"),
}


def check_changed(change, both, length):
    """Asserts that a changed model returns what it returns with Thunder, which may be an error."""

    def attempt(compiled):
        try:
            return train(compiled, tokens(length))
        except (AssertionError, RuntimeError) as error:  # Thunder holds the original parameters and buffers
            return [type(error), str(error)]

    with pytest.MonkeyPatch.context() as patch:
        undo = change(both.model, patch)
        assert are_equal(*map(attempt, (both.own, both.compiled)))
        if undo is not None:
            undo()


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_seen(pair, what):
    length, before = 100 + 2 * list(CHANGES).index(what), pair.uninterpreted_programs
    check_changed(CHANGES[what], pair, length)
    assert pair.uninterpreted_programs == before
    train(pair.compiled, tokens(length + 1))
    assert pair.uninterpreted_programs == before + 1


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("what", LATER)
def test_what_changed_is_seen_by_a_later_process(tmp_path, what):
    both = ComparedModel(Model(), tmp_path)
    check_changed(LATER[what], both, 40)
    assert both.transform.stats().programs_filled == 0


def test_arguments_that_vary_together(pair):
    before = pair.uninterpreted_programs
    for number, length in enumerate((FIRST, SECOND, 8)):
        pair.check(tokens(length), weights=torch.rand(2, length, requires_grad=True))
        assert pair.uninterpreted_programs - before == max(0, number - 1)
    with pytest.raises(Exception, match="broadcast"):
        train(pair.compiled, tokens(300), weights=torch.rand(2, 200, requires_grad=True))


class Step(torch.nn.Module):
    """What a training step is: a batch in, a loss out, and whatever else is in the batch may change it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, batch):
        rows, mask = batch["rows"], batch["more"]["mask"]
        loss = (self.linear(rows) * mask[:, None]).square().sum() / rows.shape[0]
        for number, name in enumerate(batch):
            loss = loss * (number + 2) if name == "rows" else loss + number
        loss = loss * batch.get("scale", 1)
        return loss * 2 if batch.get("label") == "twice" else loss


def make_batch(length):
    generator = torch.Generator().manual_seed(length)
    more = {"mask": torch.rand(length, generator=generator)}
    rows = torch.randn(length, 4, generator=generator)
    return {"rows": rows, "more": more, "scale": 3, "label": "once", "nothing": None}


BATCHES = {
    "a number": lambda batch: batch | {"scale": 4},
    "a number of another type": lambda batch: batch | {"scale": 3.0},
    "a text": lambda batch: batch | {"label": "twice"},
    "a text like sizes": lambda batch: batch | {"label": "(2, 4)"},
    "a key like sizes": lambda batch: batch | {"(x)": 1},
    "a key that is a number": lambda batch: batch | {7: 1},
    "a complex number": lambda batch: batch | {"more numbers": [1j]},
    "one key more": lambda batch: batch | {"extra": 1},
    "another order": lambda batch: dict(reversed(batch.items())),
    "another order of axes": lambda batch: batch | {"rows": batch["rows"].T.contiguous().T},
    "a tensor twice": lambda batch: batch | {"again": batch["rows"]},
    "gradients": lambda batch: batch | {"rows": batch["rows"].requires_grad_()},
    "another dtype": lambda batch: batch | {"more": {"mask": batch["more"]["mask"] > 0.5}},
    "another container": OrderedDict,
    "another container within": lambda batch: batch | {"more": OrderedDict(batch["more"])},
    "a parameter": lambda batch: batch | {"rows": torch.nn.Parameter(batch["rows"])},
    "a size of 1": lambda batch: make_batch(1),
}


ONES = torch.ones(3)
CYCLE: list[object] = [ONES]
CYCLE.append(CYCLE)
CONTAINERS = (
    *({"x": ONES, key: 1} for key in ("(2, 3)", True, -1, None, 1.5, ("a", "b"))),
    {"x": ONES, "y": "torch.Tensor torch.float32 (3,) (1,) cpu"},
    *([ONES, each] for each in (object(), 1j, torch.nn.Parameter(torch.ones(3)), ONES)),
    CYCLE,
)


def test_tensors_in_a_container_with_something_else_keep_their_sizes():
    assert [*find_tensors((ONES + 1, [ONES]), {})] == [0, (1, 0)]
    for container in CONTAINERS:
        assert [*find_tensors((ONES + 1, container), {})] == [0]


@pytest.fixture(scope="module", name="step")
def _step(tmp_path_factory):
    both = ComparedModel(Step(), tmp_path_factory.mktemp("step"))
    for length in (10, 14, 18):
        both.check(make_batch(length))
    assert both.uninterpreted_programs == 1
    return both


@pytest.mark.parametrize("change", BATCHES.values(), ids=BATCHES)
def test_whatever_else_in_a_batch_is_another_one_is_another_program(change, step):
    """As far as Thunder's prologue checks it: not the order of keys where the sizes have a program."""
    for length in (18, 21):  # a length that there was, and one that there was not
        step.check(change(make_batch(length)))
        step.check(make_batch(length))


def test_blocks_that_are_copied_are_called_again(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "Session", block_models.Watched)
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # from now on Dynamo tags each new module
    both = ComparedModel(Blocks(4), tmp_path)
    for length in (64, 96):
        train(both.compiled, torch.randn(2, length, 16))
        assert block_models.SESSIONS[-1].written == 1
    both.check(torch.randn(3, 200, 16))
    assert both.uninterpreted_programs == 1


class Quiet(thunder.core.transform_common.Transform):
    def cache_key(self):
        return ""

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        return prologue_trace, computation_trace, epilogue_trace


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"sizes": "static"}, {}),
        ({"verify": True}, {}),
        ({"programs": False}, {}),
        ({"jit": {"transforms": [Quiet()]}}, {"Quiet may change Thunder's first traces": 2}),
    ],
)
def test_where_every_length_is_interpreted(tmp_path, options, reasons):
    compiled, transform = compile_anew(scale, tmp_path, **options)
    for length in (64, 96, 200):
        assert torch.equal(compiled(torch.ones(2, length)), torch.full((2, length), 2.0))
    stats = transform.stats()
    assert (stats.programs_filled, stats.programs_replayed, stats.programs_interpreted) == (0, 0, reasons)


def test_a_job_that_trains_at_one_length_and_evaluates_at_another_makes_no_family(tmp_path):
    compiled, transform = compile_anew(Model(), tmp_path)
    for _ in range(2):
        train(compiled, tokens(FIRST))
        with torch.no_grad():
            compiled(tokens(SECOND))
    assert not list_slots(tmp_path) and "passes" not in transform.stats().program_seconds
    assert thunder.cache_misses(compiled) == 2


def test_a_later_process_fills_in_each_length_and_leaves_nothing_in_the_store(store, tmp_path):
    def list_entries():
        return {(each.digest, each.backend) for each in Store.open(store, remote="").entries()}

    before, both = list_entries(), ComparedModel(Model(), tmp_path)
    assert len(list_slots(store)) == 1
    for number, length in enumerate((40, 299), 1):
        both.check(tokens(length))
        assert counts(both.transform) == (number, 0, {})
    assert thunder.cache_misses(both.compiled) == 0
    stats = both.transform.stats()
    assert stats.programs_made == 0
    assert not stats.bypasses  # or its regions would be recorded with the templates of another length
    assert list_entries() == before


def test_a_family_comes_from_a_remote(store, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 60.0)  # a busy machine is no slow remote
    push(Store.open(store, remote=""), Remote(str(tmp_path / "remote")))
    for remote in (str(tmp_path / "remote"), ""):
        monkeypatch.setenv("FUSIONCACHE_REMOTE", remote)
        compiled, transform = compile_anew(Model(), tmp_path / "here")
        train(compiled, tokens(40))
        assert counts(transform) == (1, 0, {})


def test_a_family_that_came_keeps_its_signature_and_goes_with_its_key(store, tmp_path, monkeypatch):
    """What a process learns of it is not stored, or programs of the other machine would outlive its key."""
    ci = make_signing_key("ci")
    monkeypatch.setenv("FUSIONCACHE_TRUST", ci.public)
    own, there = Store.open(store, remote=""), Store.open(tmp_path / "there", remote="")
    push(own, Remote(str(tmp_path / "remote")), key=ci)
    pull(there, Remote(str(tmp_path / "remote")))
    (entry,) = list_slots(tmp_path / "there")
    form = Key(entry.digest, entry.text, ())
    (came,), (made,) = find_families(there, form), find_families(own, form)
    assert (came.is_foreign, made.is_foreign) == (True, False)
    for family in (came, made):
        family.known = family.known[::-1]  # as if it had learned something
        assert store_family(there, form, family, "model")
        assert list_slots(tmp_path / "there") == [entry] and entry.origin.key == ci.public
    put_key(ci.public, "ci", "revoked")
    with pytest.warns(RuntimeWarning, match="signed by a key that was revoked"):
        assert not store_family(there, form, came, "model")
        assert find_families(there, form) == ()
        assert store_family(there, form, made, "model")
    assert [each.origin for each in list_slots(tmp_path / "there")] == [None]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("length", [400, 1])
def test_a_length_on_the_other_side_is_derived(tmp_path, length):
    """Of a comparison of the model, or of 1, which is never general."""
    both = ComparedModel(Model(), tmp_path)
    both.check(tokens(length))
    filled, loaded, reasons = counts(both.transform)
    assert (filled, loaded, len(reasons)) == (0, 0, 1)
    (reason,) = reasons
    assert ("compares: args[0][1] < 300" in reason) is (length == 400)
    train(both.compiled, tokens(40))
    assert both.uninterpreted_programs == 1  # the family is still usable


def test_a_number_that_was_constant_by_chance_is_learned_for_later_processes(store, tmp_path):
    compiled, transform = compile_anew(Model(), store)
    train(compiled, tokens(40, 5))
    assert counts(transform) == (0, 0, {"args[0][0] was 2 so far": 1})
    with without_interpreter():
        train(compiled, tokens(30, 3))
    both = ComparedModel(Model(), tmp_path)
    both.check(tokens(33, 4))
    assert counts(both.transform) == (1, 0, {}) and thunder.cache_misses(both.compiled) == 0
    assert len(list_slots(store)) == 1  # it replaces the old one


REFUSE = Mock(side_effect=Declined("they differ in more than numbers", Scope.LENGTH))


@pytest.mark.parametrize(
    ("owner", "methods", "reason", "is_kept"),
    [
        (Eager, {"environment": lambda self: {"versions": "others"}}, "its templates are others here", True),
        (Family, {"fill": REFUSE, "learn": REFUSE}, "they differ in more than numbers", False),
    ],
)
def test_a_family_with_other_templates_is_seen_and_a_wrong_one_is_forgotten(
    store, monkeypatch, owner, methods, reason, is_kept
):
    """If a derived program does not belong to it, programs that it fills in may be wrong."""
    for name, method in methods.items():
        monkeypatch.setattr(owner, name, method)
    compiled, transform = compile_anew(Model(), store)
    train(compiled, tokens(40))
    assert counts(transform) == (0, 0, {reason: 1})
    assert bool(list_slots(store)) is is_kept


def test_a_family_that_is_not_kept_costs_later_processes_a_derivation(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "store_family", Mock(side_effect=ZeroDivisionError))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        model, compiled, transform = make_known(tmp_path / "store")
    train(compiled, tokens(40))
    assert counts(transform) == (1, 0, {}) and transform.stats().programs_refused == {"failed: ZeroDivisionError": 1}
    later, _ = compile_anew(model, tmp_path / "store")
    train(later, tokens(SECOND))
    train(later, tokens(40))
    assert thunder.cache_misses(later) == 1


class Attention(torch.nn.Module):
    """Causal attention of two heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(64, 192)

    def forward(self, x):
        query, key, value = (
            each.view(*x.shape[:2], 2, 32).transpose(1, 2) for each in self.project(x).split(64, dim=-1)
        )
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.tanh(found.transpose(1, 2).reshape(x.shape)) + x


def make_input(length):
    return torch.randn(2, length, 64, generator=torch.Generator().manual_seed(length)).to("cuda", torch.bfloat16)


def read_decisions(directory):
    """Returns the functions whose decisions are stored in the family of a store."""
    store = Store.open(directory, remote="")
    (kept,) = list_slots(directory)
    form = program_key_of(read_key(store.entry(kept.digest, kept.backend).text))
    (family,) = find_families(store, form)
    return {each.function for each in family.passes.decisions}


@pytest.fixture(name="both")
def _both(tmp_path):
    """Returns the model in both ways, over a store that another process filled at two lengths."""
    model = Attention().to("cuda", torch.bfloat16)
    compiled, _ = compile_anew(model, tmp_path / "store")
    for length in (64, 96):
        train(compiled, make_input(length))
    return ComparedModel(model, tmp_path)


@pytest.mark.gpu  # the kernel of an attention is chosen again at each length
def test_attention_is_filled_in_by_a_later_process(both, tmp_path):
    assert read_decisions(tmp_path / "store") == {"_fused_sdp_choice"}
    for number, length in enumerate((200, 65), 1):
        with without_interpreter():
            found = train(both.compiled, make_input(length))
        assert are_equal(found, train(both.own, make_input(length)))
        assert both.transform.stats().programs_filled == number


@pytest.mark.gpu
def test_where_it_is_decided_otherwise_nothing_is_filled_in(both):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        both.check(make_input(200))
    assert both.transform.stats().programs_filled == 0
