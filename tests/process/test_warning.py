"""No warning of ours ends the call that says it."""

import logging
import warnings

import pytest
import torch
from models import compile_with

import fusioncache
from fusioncache.process.warning import warn


def test_a_warning_names_the_package_and_the_line_of_the_user():
    with pytest.warns(RuntimeWarning, match="^fusioncache: something is wrong$") as caught:
        warn("something is wrong")
    assert caught[0].filename == __file__


def fail_to_show(*_args, **_options):
    raise OSError("no screen")


@pytest.mark.parametrize("shows", [None, fail_to_show], ids=["warnings are errors", "no screen"])
def test_a_warning_that_cannot_be_shown_is_logged(caplog, monkeypatch, shows):
    with warnings.catch_warnings():
        warnings.simplefilter("error" if shows is None else "always")
        monkeypatch.setattr(warnings, "showwarning", shows or warnings.showwarning)
        warn("50% is wrong")
    assert caplog.record_tuples == [("fusioncache", logging.WARNING, "fusioncache: 50% is wrong")]


def test_a_model_runs_where_warnings_are_errors_and_everything_goes_wrong(tmp_path, monkeypatch, caplog):
    no_directory = tmp_path / "file"
    no_directory.touch()
    monkeypatch.setenv("FUSIONCACHE_DIR", str(no_directory))
    monkeypatch.setenv("FUSIONCACHE_LOG", str(no_directory / "log"))
    monkeypatch.setattr("fusioncache.backends.eager.Eager.compile", None)
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")
    cache = fusioncache.Cache(store=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled, _ = compile_with(lambda x: torch.tanh(x) * 2, cache=cache)
        assert torch.equal(compiled(torch.ones(2)), torch.tanh(torch.ones(2)) * 2)
    said = "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    for part in ("this run is not recorded", "events are not logged", "runs operation by operation"):
        assert said.count(part) == 1
