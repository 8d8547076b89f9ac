"""What the commands print as JSON: exact values, times in seconds, sizes in bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.stats import TemplateCounts

if TYPE_CHECKING:
    from fusioncache.store import Entry

SCHEMA = 2
"""Of the JSON. Raise it when a field changes its meaning or goes; a new field changes nothing for who reads it."""


def print_json(data: dict[str, Any]) -> None:
    """Prints an object, with the schema it follows."""
    click.echo(json.dumps({"schema": SCHEMA, **data}, indent=2))


def encode_run(run: Run) -> dict[str, Any]:
    """Returns a run with its counts. ``started`` and ``updated`` are in seconds since the epoch."""
    # Not dataclasses.asdict: it copies fields deeply, and their mappings cannot be copied.
    values = {field.name: getattr(run.stats, field.name) for field in dataclasses.fields(run.stats)}
    counts = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    head = {"id": run.id, "name": run.name, "started": run.started, "updated": run.updated, "ended": run.ended}
    what = {"pid": run.pid, "command": run.command, "models": run.models}
    return {**head, **what, **counts, "phases": run.phases.to_dict(), "unrecorded": run.unrecorded}


def encode_template(template: TemplateCounts) -> dict[str, Any]:
    """Returns a template with its counts, without what its key is made of."""
    return {
        "digest": template.digest,
        "name": template.name,
        "ops": template.ops,
        "regions": template.regions,
        "hits": template.hits,
        "arities": template.arities,
        "compiles": template.compiles,
        "compile_seconds": template.compile_seconds,
        "loads": template.loads,
        "load_seconds": template.load_seconds,
        "loaded_compile_seconds": template.loaded_compile_seconds,
    }


def encode_summary(executable: Entry) -> dict[str, Any]:
    """Returns an executable of the store. ``created`` is in seconds since the epoch."""
    origin = {
        name: getattr(executable, name) for name in ("digest", "backend", "name", "created", "seconds", "pid", "host")
    }
    return {**origin, "artifacts": len(executable.artifacts), "size": executable.size}
