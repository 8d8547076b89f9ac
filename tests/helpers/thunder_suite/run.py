"""Runs Thunder's own tests without and with fusioncache, and compares how each of them ends.

Exits with 1 if a test ends differently and nothing in ``explained.py`` says that it has to, and if fusioncache saw no
region at all.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests" / "helpers")]

from thunder_suite import compare, running  # noqa: E402
from thunder_suite.explained import EXPLAINED  # noqa: E402
from thunder_suite.outcomes import Run, load, write_record  # noqa: E402
from thunder_suite.report import Comparison, as_json, print_comparison  # noqa: E402
from thunder_suite.settings import Selection, Settings  # noqa: E402
from thunder_suite.suites import SUITES  # noqa: E402

_SPARE = 10.0  # seconds of the time limit for all that is not running tests


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        files: what to select of each file.
        how: what all runs of pytest have in common.
        backend: of fusioncache.
        end: when to stop, on the monotonic clock.
        reruns: how often to run again a test that ends differently.
        without: results of an earlier run without fusioncache, to be taken for that run.
    """

    files: dict[str, Selection]
    how: running.How
    backend: str
    end: float
    reruns: int
    without: Path | None

    def run(self, name: str, *, inject: bool, end: float, only: list[str] | None = None) -> Run:
        """One run of pytest, of all or of the tests with these ids."""
        settings = Settings(
            results=str(self.how.directory / f"{name}.jsonl"),
            inject=self.backend if inject else None,
            files=self.files,
            only=only or [],
        )
        files = sorted({Path(id_.split("::")[0]).name for id_ in only}) if only else list(self.files)
        how = replace(self.how, jobs=min(self.how.jobs, len(only))) if only else self.how
        started = time.monotonic()
        found = running.run(name, files, settings, how, end - started)
        click.echo(f"{name}: {len(found.results)} tests in {time.monotonic() - started:.0f} s", err=True)
        return found


def compared(plan: Plan) -> Comparison:
    """Both runs, and again the tests that ended differently, as long as there is time."""
    now = time.monotonic()
    if plan.without:
        without = load(plan.without)
    else:
        without = plan.run("without", inject=False, end=now + (plan.end - now) * 0.45)
    with_ = plan.run("with", inject=True, end=plan.end)
    found = compare.differences(without, with_, EXPLAINED)
    attempts = iter(range(plan.reruns))

    def rerun(ids: list[str]) -> tuple[Run, Run] | None:
        if time.monotonic() >= plan.end:
            return None
        number = next(attempts) + 1
        once_more = [
            plan.run(f"{name}-{number}", inject=name == "with", end=plan.end, only=ids) for name in ("without", "with")
        ]
        return once_more[0], once_more[1]

    return Comparison(without, with_, compare.again(found, rerun, plan.reruns))


def _default_backend() -> str:
    import torch

    return "auto" if torch.cuda.is_available() else "eager"


def _files(suite: str, files: str, sample: int) -> dict[str, Selection]:
    selected = dict(SUITES[suite])
    if files:
        names = [f"test_{name.removeprefix('test_').removesuffix('.py')}.py" for name in files.split(",")]
        missing = [name for name in names if not (running.folder_of_tests() / name).is_file()]
        if missing:
            raise click.BadParameter(f"Thunder has no tests {', '.join(missing)}", param_hint="--files")
        selected = {name: selected.get(name, Selection()) for name in names}
    if sample:
        selected = {name: replace(selection, sample=sample) for name, selection in selected.items()}
    return selected


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--suite", type=click.Choice(list(SUITES)), default="cpu", help="Which tests, see suites.py.")
@click.option("--files", default="", help="Only these files, as in core,grad.")
@click.option("-k", "keyword", default="", help="As for pytest.")
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Every how many tests; 0: what the suite says.")
@click.option("--jobs", type=click.IntRange(min=0), default=os.cpu_count(), help="Processes; 0: no worker.")
@click.option("--time-limit", type=click.FloatRange(min=30), default=3600.0, help="Seconds for everything.")
@click.option("--timeout", type=click.IntRange(min=1), default=300, help="Seconds for one test.")
@click.option("--reruns", type=click.IntRange(min=0), default=3, help="Of a test that ends differently.")
@click.option(
    "--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), help="[default: auto; no GPU: eager]"
)
@click.option(
    "--without",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Take the run without fusioncache from an earlier one, on the same kind of machine: without.jsonl in its "
    "directory, or what --record wrote.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write how tests ended without fusioncache, for --without.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the result.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep logs and results here.  [default: a new one]")
def main(
    suite: str,
    files: str,
    sample: int,
    time_limit: float,
    record: Path | None,
    json_file: Path | None,
    directory: Path | None,
    **options: Any,
) -> None:
    end = time.monotonic() + time_limit - _SPARE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that pytest is ended too
    directory = (directory or Path(mkdtemp(prefix="thunder-suite-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    options["backend"] = options["backend"] or _default_backend()
    how = running.How(options["jobs"], options["keyword"], options["timeout"], directory)
    without = options.pop("without")
    options["without"] = "an earlier run" if without else "this run"
    selected_files = _files(suite, files, sample)
    plan = Plan(selected_files, how, options["backend"], end, options["reruns"], without)
    for name, selection in plan.files.items():
        if selection.sample > 1:
            click.echo(f"{name}: one test of {selection.sample}")
    comparison = compared(plan)
    print_comparison(comparison)
    if record and comparison.without.finished:
        write_record(record, comparison.without)
    if json_file:
        selected = {name: asdict(selection) for name, selection in plan.files.items()}
        _write(json_file, comparison, options | {"suite": suite, "files": selected, "time_limit": time_limit})
    if comparison.against:
        click.echo(f"{len(comparison.against)} tests end differently; logs are in {directory}")
    sys.exit(bool(comparison.against) or not comparison.counts.regions)


def _write(file: Path, comparison: Comparison, options: dict[str, Any]) -> None:
    from benchmarks.common.environment import describe

    result = {"environment": describe() | {"options": options}} | as_json(comparison)
    file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
