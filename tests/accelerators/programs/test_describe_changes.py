"""Each change of a thing, alone and in place, is seen by who describes it again, and so is its end."""

import pytest
import torch
from changed_things import OF_A_MODEL, THINGS, Model, make_things
from described import walked
from known_keys import with_attributes
from program_keys import changed

from fusioncache.ir.errors import Declined


@pytest.fixture(scope="module", name="model")
def _model() -> Model:
    return Model()


@pytest.fixture(scope="module", params=["function", "class"], name="owned")
def _owned(request):
    """Things as attributes of a function, and in the body of a class: what has them, and what refers to that."""
    things = make_things(request.param)
    if request.param == "function":
        function = with_attributes(things)
        return function, function
    del things["weak"]
    body = type("Body", (), things)
    return body, with_attributes({"kind": body})


def read(described):
    """Returns what is said of it, or why it has no value."""
    try:
        return walked(described)
    except Declined as reason:
        return str(reason)


def assert_seen(described, change):
    before = read(described)
    with change():
        assert read(described) != before
    assert read(described) == before


@pytest.mark.parametrize("what", THINGS)
def test_what_changed_is_seen(what, owned):
    owner, described = owned
    if hasattr(owner, "weak") or what != "what a weak reference is of":
        assert_seen(described, lambda: THINGS[what](owner))


@pytest.mark.parametrize("what", OF_A_MODEL)
def test_what_changed_in_a_model_is_seen(what, model):
    assert_seen(model, lambda: OF_A_MODEL[what](model))


def test_what_changed_in_a_module_or_a_tensor_that_a_class_holds_is_seen():
    body = type("Body", (), {"tensor": torch.zeros(2), "inner": type("Inner", (), {"module": Model()})})
    described = with_attributes({"kind": body})
    assert_seen(described, lambda: changed(body.inner.module.norm, "eps", 1.0))
    assert_seen(described, lambda: changed(body, "tensor", torch.zeros(3)))
