"""Compares the golden texts of models of the zoo with the committed ones; without a name, of all models.

Exit code 1 if anything differs, or if a model fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import click

from benchmarks import zoo
from benchmarks.common import processes
from golden.texts import DATA, Section, find_differences, load, name_file, save
from golden.worker import MODES


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Choice(zoo.names()))
@click.option("--rewrite", is_flag=True, help="Write the files anew, in place of comparing.")
@click.option("--folder", type=click.Path(path_type=Path), default=DATA, help="Where the files are.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Processes at a time.")
def main(models: Sequence[str], rewrite: bool, folder: Path, jobs: int) -> None:
    chosen = models or zoo.names()
    differing = []
    with ThreadPoolExecutor(jobs) as pool:
        # Models at the end of the list take longest.
        futures = {pool.submit(print_model, model): model for model in reversed(chosen)}
        for future in as_completed(futures):
            model = futures[future]
            try:
                is_same = finish(model, future.result(), folder, rewrite=rewrite)
            except processes.ProcessFailed as failure:
                click.echo(f"{model}: {failure.format_message()}")
                is_same = False
            differing += [] if is_same else [model]
    if differing:
        click.echo(f"\nnot as committed: {', '.join(differing)}. If that is intended: make golden REWRITE=1")
    sys.exit(1 if differing else 0)


def print_model(model: str, modes: Sequence[str] = MODES) -> list[Section]:
    """Returns the sections of one model, which a new process prints."""
    paths = [str(processes.ROOT), str(processes.ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONHASHSEED"] = "0"  # Thunder orders the inputs of some regions by a set
    spec = {"model": model, "modes": list(modes)}
    return [Section(**each) for each in processes.call("golden.worker", spec, environment=environment)]


def finish(model: str, sections: Sequence[Section], folder: Path, *, rewrite: bool) -> bool:
    """Rewrites the file of a model, or prints its differences; True if no difference is left."""
    path = name_file(folder, model)
    lines = find_differences(model, load(path), sections)
    if rewrite:
        if lines or not path.exists():
            save(path, sections)
        click.echo(f"{model}: {'written' if lines else 'as before'}, {path.stat().st_size} bytes")
        return True
    click.echo("\n".join(lines) if lines else f"{model}: {len(sections)} parts are the same")
    return not lines


if __name__ == "__main__":
    main()
