"""The report's section on collectives: a bar for each, the most bytes in flight and alive, and costs of bounds."""

from collections.abc import Iterator

import pytest
import torch
from report_records import Page, make_placement, make_run, read_newest
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
from fusioncache.cli.report import Contents


def test_each_collective_has_a_bar():
    section = Page.of(Contents(make_run(), (), (), (), (make_placement(),))).section("collectives")
    assert '<svg class="timeline" viewBox="0 0 6 1" preserveAspectRatio="none" aria-hidden="true">' in section
    assert '<rect class="reduce" x="3" width="2" height="1"/>' in section


@pytest.fixture
def job() -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_a_run_leaves_behind_what_its_transform_says(job):
    """One of a pretended job, whose collectives do nothing."""
    cache = fusioncache.Cache(store=False)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    jitted = fusioncache.distributed.tensor_parallel(
        model, column=["0"], row=["2"], cache=cache, backend="eager", jobs=0, programs=False
    )
    jitted(torch.ones(4, 8, requires_grad=True)).sum().backward()
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    cache.write_record()
    found = read_newest().placements
    assert [placement.trace for placement in found] == ["forward", "backward"]
    for recorded, placement in zip(found, transform.placements(), strict=True):
        assert len(recorded.flights) == placement.collectives == 1
        assert recorded.after.alive == placement.after().alive == max(recorded.alive)
        assert len(recorded.calls) == len(placement.schedule.steps)
        assert [flight.name for flight in recorded.flights] == ["all_reduce SUM float32 (4, 8)"]
        assert recorded.bounds[0].bound == placement.bounds.reducing and recorded.model == "Sequential"
