"""Calls of the command line in this process, and a small record that is always the same."""

import recorded_templates as recorded
from click.testing import CliRunner, Result
from pytest import MonkeyPatch

from fusioncache.cli.main import main
from fusioncache.observe.record.observations import Line, RegionRecord, Source

CHAIN = recorded.make_chain_template()
CAST = recorded.make_cast_template()
FIRST_RUN = "a" * 32
OTHER_RUN = "ab" + "0" * 30


def call(*args: str, **options: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="fusioncache", **options)  # type: ignore[arg-type]


def get_output(*args: str) -> str:
    """Returns the output of a command; asserts that it succeeds without messages on stderr."""
    result = call(*args)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def get_error(*args: str, code: int = 1) -> str:
    """Returns the error message of a command; asserts that it fails with ``code`` and an empty stdout."""
    result = call(*args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr


def make_run_ledger():
    def region(number: int, digest: str | None, outcome: str, *arities: int, reason: str | None = None) -> RegionRecord:
        where = Source(f"blocks.{number}", number, (Line("/home/me/model.py", 31), Line("/lib/torch/nn.py", 7, True)))
        plan = None if digest is None else "fold" if arities else "inline"
        place = ("Blocks", "forward", 0, 4 * number, f"nvFusion{number}")
        return RegionRecord(*place, digest, outcome, reason, arities, plan, where, 3, 2, 1)

    ledger, chain, cast = recorded.make_full_ledger(), CHAIN.key.digest, CAST.key.digest
    ledger.history.add(
        region(0, cast, "miss"),
        *(region(arity, chain, "hit" if arity > 1 else "miss", arity) for arity in (1, 2, 3)),
        region(4, None, "bypass", reason="unknown op"),
        region(7, chain, "hit", 7, reason="compile failed: ValueError"),
    )
    return ledger


def save_run(monkeypatch):
    recorded.save_ledger(monkeypatch, make_run_ledger())


def save_two_runs(monkeypatch: MonkeyPatch) -> None:
    """Records the run of ``save_run``, and a run a minute later that had only the second template."""
    save_run(monkeypatch)
    save_other(monkeypatch, recorded.make_ledger(CAST))


def save_other(monkeypatch, ledger):
    recorded.save_ledger(monkeypatch, ledger, run=OTHER_RUN, started=recorded.STARTED + 60, argv=["other.py"])
