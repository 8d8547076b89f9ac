"""A stored program is loaded only if everything that it depends on is unchanged."""

import pytest
import thunder
import torch

import fusioncache

SCALE = 2.0


class Config:
    factor = 0.5


def scale(x):
    return x * SCALE


def shift(x):
    return x + 1.0


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Model(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.linear = torch.nn.Linear(width, 8)
        self.config = Config()
        self.sizes = [1, 2]
        self.options = {"bias": True}

    def forward(self, x):
        x = scale(self.linear(x)) * self.config.factor + len(self.sizes)
        return torch.tanh(x) if self.options["bias"] else torch.sin(x)


def run(store, change=lambda model: None, dtype=torch.float32, call=lambda compiled, x: compiled(x)):
    """Runs a changed model with this store, and returns how many programs it loaded and how many it traced."""
    torch.manual_seed(0)
    model = Model().to(dtype)
    change(model)
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache(store=store))
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    x = torch.ones(4, model.linear.in_features, dtype=dtype)
    assert torch.equal(call(compiled, x), call(model, x))
    return transform.stats().programs_loaded, transform.stats().programs_made


LOADED, TRACED = (1, 0), (0, 1)


def set_(name, value):
    return lambda model: setattr(model, name, value)


CHANGES = {
    "an attribute of an object that the model has": lambda model: setattr(model.config, "factor", 0.25),
    "an item of a dictionary": set_("options", {"bias": False}),
    "the length of a list": set_("sizes", [1, 2, 3]),
    "the width of a layer": set_("linear", torch.nn.Linear(6, 8)),
    "a layer without a bias": set_("linear", torch.nn.Linear(8, 8, bias=False)),
    "a layer of another class": set_("linear", Doubled(8, 8)),
    "a frozen parameter": lambda model: model.linear.weight.requires_grad_(False),
    "evaluation": lambda model: model.eval(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_is_traced(tmp_path, change):
    assert run(tmp_path) == TRACED
    assert run(tmp_path, change) == TRACED
    assert run(tmp_path) == LOADED


@pytest.mark.parametrize(("name", "value"), [("SCALE", 3.0), ("scale", shift)], ids=["value", "function"])
def test_a_global_of_the_code_is_noticed(tmp_path, monkeypatch, name, value):
    assert run(tmp_path) == TRACED
    monkeypatch.setitem(globals(), name, value)
    assert run(tmp_path) == TRACED


def test_another_dtype_is_noticed(tmp_path):
    assert run(tmp_path) == TRACED
    assert run(tmp_path, dtype=torch.float64) == TRACED


def test_no_grad_is_noticed(tmp_path):
    assert run(tmp_path) == TRACED
    with torch.no_grad():
        assert run(tmp_path) == TRACED
