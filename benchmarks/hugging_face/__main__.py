"""The first step of Hugging Face's models through thunderfx, in a first and in a second process.

The models have two narrow layers and random weights, and are trained on a CPU with TorchInductor. Each first process
begins with empty cache directories, and the second one has those that it left. ``programs`` is fusioncache as it is,
``templates`` the same without programs (``FUSIONCACHE_PROGRAMS=0``). ``floor`` is a second process in which Thunder
does nothing: what Dynamo, Thunder's splitter and TorchInductor take for the parts that do not go to Thunder is no
business of fusioncache's. Imports are no part of any figure, but for those that torch does in the step.

On a busy machine compare CPU seconds. The JSON is written after each model;
what it has of other models stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
import transformers

from benchmarks.common.environment import describe
from benchmarks.common.options import Words, command, json_option
from benchmarks.common.processes import ProcessFailed, call
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, is_wrong, make_result, say, write_result
from benchmarks.hugging_face.models import MODELS

_WORKER = "benchmarks.hugging_face.worker"
_NAMES = tuple(MODELS)
_WITHOUT = {"FUSIONCACHE_PROGRAMS": "0"}
_EQUAL = 1e-3
"""How far two losses may be from each other: kernels of TorchInductor's and Thunder's eager ones round otherwise."""


@command(__doc__)
@click.option("--models", type=Words(_NAMES), default=_NAMES, help="As in GPT-2,BERT.")
@click.option("--once", is_flag=True, help="Leave out the first process without programs: its caches are the other's.")
@json_option
def main(models: tuple[str, ...], once: bool, json_file: Path | None) -> None:
    """Runs the benchmark."""
    options = {
        "models": list(models),
        "once": once,
        "transformers": transformers.__version__,
        "threads": 1,
        "layers": 2,
    }
    points = _read_others(json_file, models)
    write_result(json_file, make_result(describe(), options, points=points))
    for model in models:
        points.append(_measure(model, once=once))
        write_result(json_file, make_result(describe(), options, points=points))
    columns = ("<model", "programs", "with Thunder", "first", "without", "second", "without", "floor", "ratio")
    rows = [_list_cells(point) for point in points]
    console().print(make_table("CPU seconds of the first step", f"torch {torch.__version__}", columns, rows))
    sys.exit(1 if any(map(is_wrong, points)) else 0)


def _read_others(json_file: Path | None, models: tuple[str, ...]) -> list[Point]:
    """Returns the points that the file has of other models."""
    if json_file is None or not json_file.exists():
        return []
    points = [point for point in json.loads(json_file.read_text())["points"] if point["model"] not in models]
    return [point if "error" in point else _judge(point) for point in points]


def _measure(model: str, *, once: bool) -> Point:
    """Returns what each process of a model measured."""
    point: Point = {"model": model, "programs": {}, "templates": {}}
    try:
        with TemporaryDirectory(prefix="fusioncache-hugging-face-") as directory:
            caches = Path(directory)
            for process in ("first", "second", "floor"):
                point["programs"][process] = _run(model, "programs", process, caches)
            if once:
                point["templates"]["second"] = _run(model, "templates", "second", caches)
        if not once:
            with TemporaryDirectory(prefix="fusioncache-hugging-face-") as directory:
                for process in ("first", "second"):
                    point["templates"][process] = _run(model, "templates", process, Path(directory))
    except ProcessFailed as failure:
        say(f"{failure.message}\n")
        return {**point, "error": failure.message, "log": failure.log}
    return _judge(point)


def _judge(point: Point) -> Point:
    """Returns what was measured of a model with the ratio of its second processes, and whether all losses are alike."""
    ratio = _seconds(point, "programs", "second") / _seconds(point, "templates", "second")
    # Without Thunder random numbers come in another order: of it only the seconds count.
    found = [each for way in ("programs", "templates") for name, each in point[way].items() if name != "floor"]
    losses = [each["loss"] for each in found]
    is_loaded = point["programs"]["second"]["programs_made"] == 0
    return {**point, "ratio": ratio, "correct": max(losses) - min(losses) < _EQUAL and is_loaded}


def _run(model: str, way: str, process: str, caches: Path) -> Point:
    say(f"{model}, {way}, {process} process\n")
    argument = {"model": model, "thunder": process != "floor"}
    found: Point = call(_WORKER, argument, caches=caches, environment=_WITHOUT if way == "templates" else {})
    return found


def _seconds(point: Point, way: str, process: str) -> float:
    return float(point[way][process]["cpu_seconds"])


def _format(point: Point, way: str, process: str) -> str:
    return f"{_seconds(point, way, process):.1f}" if process in point[way] else "-"


def _list_cells(point: Point) -> list[Any]:
    if "error" in point:
        return [point["model"], "failed", *[""] * 7]
    second = point["programs"]["second"]
    seconds = [_format(point, way, process) for process in ("first", "second") for way in ("programs", "templates")]
    parts = f"{second['parts_with_thunder']} of {second['parts']}"
    floor = _format(point, "programs", "floor")
    return [point["model"], str(second["programs_loaded"]), parts, *seconds, floor, f"{point['ratio']:.2f}"]


if __name__ == "__main__":
    main()
