"""Later processes: they fill in lengths that nobody saw, and see whatever is not what it was in the first one."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import thunder
import torch
from signing_keys import make_signing_key
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.programs import key
from fusioncache.accelerators.sizes import lengths
from fusioncache.accelerators.sizes.families import Family, find_families, keep_family
from fusioncache.backends.eager import Eager
from fusioncache.cache.exchange import pull, push
from fusioncache.ir import Key
from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.keys import read_key
from fusioncache.store import Store, read_through
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.store.remote import Remote
from fusioncache.store.signing import put_key

SCALE = 2.0
FIRST, SECOND = 12, 20


def scale(x):
    return x * 2.0


class Model(torch.nn.Module):
    """What goes by attributes, globals and functions, and looks at the length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.power = 2

    def forward(self, x):
        y = torch.tanh(self.linear(x))[:, None]
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)[:, 0] * SCALE**self.power
        return scale(y) + x / x.shape[1] if x.shape[1] < 100 else y


def make_input(length, rows=2):
    return torch.randn(rows, length, 8, generator=torch.Generator().manual_seed(length))


def train(compiled, model, x):
    model.zero_grad()
    result = compiled(x)
    if result.requires_grad:
        result.square().sum().backward()
    return [result, *(each.grad for each in model.parameters() if each.grad is not None)]


def expect(model, directory, x):
    """Returns what Thunder has where nothing is kept."""
    compiled, _ = compile_anew(model, directory, programs=False, sizes="static")
    return train(compiled, model, x)


def counts(transform):
    """Returns how many programs were filled in and were loaded, and why passes ran for others."""
    stats = transform.stats()
    return stats.programs_filled, stats.programs_loaded, dict(stats.passes_repeated)


def list_slots(directory):
    """Returns the families in a store: their form's key, and their slots."""
    store = Store.open(directory, remote="")
    return [each for each in store.entries() if each.backend in FAMILY_SLOTS]


@pytest.fixture(scope="module", name="stored")
def _stored(tmp_path_factory):
    """A store that a process has left which had two lengths."""
    directory = tmp_path_factory.mktemp("stored") / "store"
    model = Model()
    compiled, transform = compile_anew(model, directory)
    for length in (FIRST, SECOND):
        train(compiled, model, make_input(length))
    assert counts(transform) == (0, 0, {})
    assert len(list_slots(directory)) == 1
    return directory


@pytest.fixture(name="store")
def _store(stored, tmp_path):
    """A copy of it."""
    return shutil.copytree(stored, tmp_path / "store")


def test_the_first_call_of_a_later_process_is_filled_in(store, tmp_path):
    model = Model()
    compiled, transform = compile_anew(model, store)
    for number, length in enumerate((40, 99), 1):
        x = make_input(length)
        with without_interpreter():
            found = train(compiled, model, x)
        assert all(map(torch.equal, found, expect(model, tmp_path / "own", x)))
        assert counts(transform) == (number, 0, {})
    assert thunder.cache_misses(compiled) == 0
    assert not transform.stats().bypasses  # or its regions would be on record with the templates of another length


def test_a_length_that_was_filled_in_leaves_nothing_in_the_store(store):
    before = Store.open(store, remote="").entries()
    for _ in range(2):
        model = Model()
        compiled, transform = compile_anew(model, store)
        train(compiled, model, make_input(40))
        assert counts(transform) == (1, 0, {})
        assert transform.stats().programs_made == 0
    found = Store.open(store, remote="").entries()
    assert {(each.digest, each.backend) for each in found} == {(each.digest, each.backend) for each in before}


def test_a_family_comes_from_a_remote(store, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_TRUST", "unsigned")
    monkeypatch.setattr(read_through, "WAIT_SECONDS", 60.0)  # a busy machine is no slow remote
    push(Store.open(store, remote=""), Remote(str(tmp_path / "remote")))
    for remote in (str(tmp_path / "remote"), ""):
        monkeypatch.setenv("FUSIONCACHE_REMOTE", remote)
        model = Model()
        compiled, transform = compile_anew(model, tmp_path / "here")
        train(compiled, model, make_input(40))
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
    assert (came.came, made.came) == (True, False)
    for family in (came, made):
        family.known = family.known[::-1]  # as if it had learned something
        assert keep_family(there, form, family, "model")
        assert list_slots(tmp_path / "there") == [entry] and entry.origin.key == ci.public
    put_key(ci.public, "ci", "revoked")
    with pytest.warns(RuntimeWarning, match="signed by a key that was revoked"):
        assert not keep_family(there, form, came, "model")
        assert find_families(there, form) == ()
        assert keep_family(there, form, made, "model")
    assert [each.origin for each in list_slots(tmp_path / "there")] == [None]


@pytest.mark.parametrize("shape", [(2, 120, 8), (2, 1, 8)])
def test_a_length_on_the_other_side_is_derived(store, tmp_path, shape):
    """Of a comparison of the model's, or of 1, which is never general."""
    model = Model()
    compiled, transform = compile_anew(model, store)
    x = torch.randn(shape)
    assert all(map(torch.equal, train(compiled, model, x), expect(model, tmp_path / "own", x)))
    filled, loaded, reasons = counts(transform)
    assert (filled, loaded, len(reasons)) == (0, 0, 1)
    (reason,) = reasons
    assert ("compares: args[0][1] < 100" in reason) is (shape[1] == 120)
    train(compiled, model, make_input(40))
    assert transform.stats().programs_filled == 1  # what was known is known still


def test_a_number_that_was_constant_by_chance_is_learned_for_later_processes(store, tmp_path):
    model = Model()
    compiled, transform = compile_anew(model, store)
    train(compiled, model, make_input(40, 5))
    assert counts(transform) == (0, 0, {"args[0][0] was 2 so far": 1})
    with without_interpreter():
        train(compiled, model, make_input(30, 3))
    again, later = compile_anew(model, store)
    x = make_input(33, 4)
    with without_interpreter():
        found = train(again, model, x)
    assert all(map(torch.equal, found, expect(model, tmp_path / "own", x)))
    assert counts(later) == (1, 0, {})
    assert len(list_slots(store)) == 1  # in the stead of what was there


def test_a_template_that_is_another_one_is_seen(store, monkeypatch):
    """As where the backend runs in another environment: then it might have made other regions."""
    own = Eager.environment
    monkeypatch.setattr(Eager, "environment", lambda self: {**own(self), "versions": "others"})
    model = Model()
    compiled, transform = compile_anew(model, store)
    train(compiled, model, make_input(40))
    assert counts(transform) == (0, 0, {"its templates are others here": 1})


def test_a_family_that_is_wrong_is_forgotten(store, monkeypatch):
    """If a program is derived that is none of it, nothing says that those that it fills in are right."""
    for method in ("fill", "learn"):
        monkeypatch.setattr(
            Family, method, Mock(side_effect=Declined("they differ in more than numbers", Scope.LENGTH))
        )
    model = Model()
    compiled, transform = compile_anew(model, store)
    train(compiled, model, make_input(40))
    assert counts(transform) == (0, 0, {"they differ in more than numbers": 1})
    assert not list_slots(store)


def test_what_the_store_raises_costs_no_more_than_the_family(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "keep_family", Mock(side_effect=ZeroDivisionError))
    model = Model()
    compiled, transform = compile_anew(model, tmp_path / "store")
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        for length in (FIRST, SECOND):
            train(compiled, model, make_input(length))
    with without_interpreter():
        train(compiled, model, make_input(40))
    assert counts(transform) == (1, 0, {})
    assert transform.stats().programs_refused == {"failed: ZeroDivisionError": 1}
    assert not list_slots(tmp_path / "store")
    later, loading = compile_anew(model, tmp_path / "store")
    train(later, model, make_input(SECOND))
    assert counts(loading) == (0, 1, {})  # with what is on record of it
    assert loading.stats().regions == transform.stats().regions / 3 and not loading.stats().bypasses


def test_what_does_not_decode_is_discarded(store: Path):
    """One whose digests are right, as another program may have written it."""
    opened = Store.open(store, remote="")
    (summary,) = list_slots(store)
    entry = opened.entry(summary.digest, summary.backend)
    name = key.program_key_of(read_key(entry.text))
    artifacts = dict(opened.peek(name, summary.backend))
    artifacts["family"] = artifacts["family"].replace(b'"looks"', b'"locks"')
    opened.remove(name, summary.backend)
    assert opened.save(name, summary.backend, artifacts)
    model = Model()
    compiled, transform = compile_anew(model, store)
    with pytest.warns(RuntimeWarning, match="a stored family that does not decode"):
        train(compiled, model, make_input(40))
    assert counts(transform) == (0, 0, {})
    assert not list_slots(store)
    train(compiled, model, make_input(41))
    assert len(list_slots(store)) == 1
