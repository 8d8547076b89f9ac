"""Tensors in a dictionary, a list or a tuple have lengths as arguments have; all else in it has to be the same."""

from collections import OrderedDict
from typing import Any

import pytest
import thunder
import torch
from stored_programs import compile_anew

from fusioncache.accelerators.sizes.values import find_tensors


class Step(torch.nn.Module):
    """What a training step is: a batch in, a loss out, and whatever else is in the batch may change it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, batch: Any) -> torch.Tensor:
        rows, mask = (batch["rows"], batch["more"]["mask"]) if isinstance(batch, dict) else batch[:2]
        loss = (self.linear(rows) * mask[:, None]).square().sum() / rows.shape[0]
        if isinstance(batch, dict):
            for number, key in enumerate(batch):
                loss = loss * (number + 2) if key == "rows" else loss + number
            loss = loss * batch.get("scale", 1)
            if batch.get("label") == "twice":
                loss = loss * 2
        return loss


def make_tensors(length: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(length, 4, generator=generator, dtype=dtype), torch.rand(length, generator=generator)


def make_dict(length: int) -> dict[str, Any]:
    rows, mask = make_tensors(length)
    return {"rows": rows, "more": {"mask": mask}, "scale": 3, "label": "once", "nothing": None}


def train(compiled: Any, model: Any, batch: Any) -> list[torch.Tensor]:
    model.zero_grad()
    loss = compiled(batch)
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def change(**changes: Any) -> Any:
    return lambda length: {**make_dict(length), **changes}


def transposed(length: int) -> dict[str, Any]:
    batch = make_dict(length)
    return {**batch, "rows": batch["rows"].T.contiguous().T}


def turned(length: int) -> dict[str, Any]:
    return dict(reversed(make_dict(length).items()))


def shared(length: int) -> dict[str, Any]:
    batch = make_dict(length)
    return {**batch, "again": batch["rows"]}


def differentiable(length: int) -> dict[str, Any]:
    batch = make_dict(length)
    return {**batch, "rows": batch["rows"].requires_grad_()}


def double(length: int) -> dict[str, Any]:
    return {**make_dict(length), "rows": make_tensors(length, torch.float64)[0].float(), "more": make_more(length)}


def make_more(length: int) -> dict[str, Any]:
    return {"mask": make_tensors(length)[1].bool()}


CHANGES = {
    "a number": change(scale=4),
    "a number of another type": change(scale=3.0),
    "a text": change(label="twice"),
    "a text like sizes": change(label="(2, 4)"),
    "a key like sizes": change(**{"(x)": 1}),
    "one key more": change(extra=1),
    "another order": turned,
    "another order of axes": transposed,
    "a tensor twice": shared,
    "gradients": differentiable,
    "another dtype": double,
    "another container": lambda length: OrderedDict(make_dict(length)),
    "another container within": lambda length: {**make_dict(length), "more": OrderedDict(make_dict(length)["more"])},
    "a parameter": lambda length: {**make_dict(length), "rows": torch.nn.Parameter(make_dict(length)["rows"])},
    "a size of 1": lambda length: make_dict(1),
}


@pytest.fixture(scope="module", name="known")
def _known(tmp_path_factory):
    """A model that has seen three lengths of a dictionary, and the same as Thunder does it at each."""
    directory, model = tmp_path_factory.mktemp("batches"), Step()
    own, _ = compile_anew(model, directory / "own", programs=False, sizes="static")
    compiled, transform = compile_anew(model, directory / "store")
    for length in (10, 14, 18):
        assert all(map(torch.equal, train(compiled, model, make_dict(length)), train(own, model, make_dict(length))))
    assert transform.stats().programs_filled == 1
    return model, own, compiled


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_whatever_else_is_another_one_is_another_program(make, known):
    """As far as Thunder's prologue sees it: not in which order keys are, where there is a program for the sizes."""
    model, own, compiled = known
    for length in (18, 21):  # a length that there was, and one that there was not
        assert all(map(torch.equal, train(compiled, model, make(length)), train(own, model, make(length))))
        assert all(map(torch.equal, train(compiled, model, make_dict(length)), train(own, model, make_dict(length))))


def pop(batch):
    return batch["x"] * batch.pop("y")


def store(batch):
    batch["z"] = batch["x"] * 2
    return batch["z"] + batch["y"]


def add(batch):
    batch["x"].add_(1)
    return batch["x"] * batch["y"]


@pytest.mark.parametrize(("compute", "filled"), [(pop, 0), (store, 0), (add, 1)])
def test_what_a_program_does_to_its_batch_is_what_it_does_with_thunder(compute, filled, tmp_path):
    """Thunder 0.2.6 does it while it traces, and not later."""
    own, (compiled, transform) = thunder.jit(compute), compile_anew(compute, tmp_path)
    for length in (10, 14, 18, 18):
        outcomes = []
        for function in (own, compiled):
            batch = {"x": torch.ones(length), "y": torch.full((length,), 3.0)}
            try:
                result = function(batch).tolist()
            except Exception as error:
                result = repr(error)
            left = {name: each.tolist() if type(each) is torch.Tensor else type(each) for name, each in batch.items()}
            outcomes.append((result, left))
        assert outcomes[0] == outcomes[1]
    assert transform.stats().programs_filled == filled


class Table(dict):
    pass


def make_cycle() -> list[Any]:
    cycle: list[Any] = [torch.ones(3)]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    "container",
    [
        {"x": torch.ones(3), "(2, 3)": 1},
        {"x": torch.ones(3), "y": "torch.Tensor torch.float32 (3,) (1,) cpu"},
        [torch.ones(3), object()],
        [torch.ones(3), 1j],
        [torch.ones(3), Table(x=1)],
        [torch.ones(3), torch.nn.Parameter(torch.ones(3))],
        {("a", "b"): torch.ones(3)},
        {1.5: torch.ones(3)},
        {True: torch.ones(3)},
        {-1: torch.ones(3)},
        {None: torch.ones(3)},
        [torch.ones(3)] * 2,
        make_cycle(),
        Table(x=torch.ones(3)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_container_with_something_else_keeps_its_sizes(container):
    x = torch.ones(2)
    assert list(find_tensors((x, container), {})) == [0]
