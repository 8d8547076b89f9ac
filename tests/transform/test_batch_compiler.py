"""Without workers, a process's first call compiles for all calls, and later calls find what they need."""

import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from compared_models import are_equal, train
from models import Small
from stored_programs import compile_anew

from fusioncache.backends.inductor import persistence

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


class Job:
    """A model with TorchInductor and a store, which counts regions that are compiled together."""

    def __init__(self, store: Path):
        torch.manual_seed(0)
        self.compiled, self.transform = compile_anew(Small(), store, "inductor")

    def step(self, *, trains: bool = True) -> tuple[list[torch.Tensor], list[int]]:
        """Returns output and gradients, and the number of regions of each compiler run for several."""
        x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
        together = mock.Mock(wraps=persistence.compile_kernels)
        with mock.patch.object(persistence, "compile_kernels", together), torch.set_grad_enabled(trains):
            results = train(self.compiled, x)
        return results, [len(call.args[0]) for call in together.call_args_list]


@pytest.fixture(scope="module", name="first")
def _first(tmp_path_factory):
    store = tmp_path_factory.mktemp("batches") / "store"
    job = Job(store)
    return store, job, *job.step()


def test_the_first_call_compiles_for_all_and_every_step_and_process_has_the_same_bits(first):
    store, job, results, runs = first
    stats = job.transform.stats()
    assert runs[0] == max(runs) > 2 and sum(runs) == stats.compiles == stats.templates
    assert (stats.loads, stats.handed_over, dict(stats.bypasses)) == (0, 0, {})
    assert sum(template.compile_seconds for template in job.transform.cache.templates()) > 0
    again, more = job.step()
    assert are_equal(results, again) and not more

    second = Job(store)
    loaded, runs = second.step()
    assert are_equal(results, loaded) and not runs
    assert (second.transform.stats().compiles, second.transform.stats().loads) == (0, stats.compiles)


def test_a_loaded_program_whose_code_is_gone_is_compiled_at_once(first, tmp_path):
    store, _, results, runs = first
    job = Job(shutil.copytree(store, tmp_path / "store"))
    for path in tmp_path.rglob("*.inductor"):
        path.unlink()
    again, more = job.step()
    assert job.transform.stats().programs_loaded == 1
    assert are_equal(results, again) and more == runs


FAILED = mock.Mock(side_effect=MemoryError)


@pytest.mark.parametrize(("name", "new"), [("ahead.find_job_store", object), ("entry_compiler.make_arguments", FAILED)])
def test_ranks_of_a_job_and_what_fails_in_a_batch_compile_each_region_by_itself(tmp_path, name, new):
    job = Job(tmp_path)
    with mock.patch(f"fusioncache.accelerators.precompile.{name}", new):
        _, runs = job.step(trains=False)
    stats = job.transform.stats()
    assert not runs and stats.compiles == 2 and not stats.bypasses


def test_without_a_compiler_regions_run_operation_by_operation_and_it_is_said_once(monkeypatch, tmp_path):
    from fusioncache.process.warning import warn_once

    warn_once.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("fusioncache.transform.shared_region.problem", lambda *args: "no GPU")
    with pytest.warns(RuntimeWarning) as warned:
        for _ in range(2):
            model = Small()
            compiled, transform = compile_anew(model, tmp_path, "auto")
    advice = "there is no C++ compiler: install one (apt install g++), or set CXX to one"
    assert [str(one.message) for one in warned] == [f"fusioncache: regions run operation by operation, as {advice}"]
    x = torch.randn(3, 16)
    compiled(x).sum().backward()
    torch.testing.assert_close(compiled(x), model(x))
    assert transform.stats().templates and not transform.stats().bypasses
