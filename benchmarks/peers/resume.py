"""What an earlier run of the benchmark of peers has measured already, and whether it measured the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.common.results import Point

_SAME = ("gpu", "processor", "commit", "versions")
_MAY_DIFFER = {"peers", "limit"}


def read_finished(text: str, environment: Mapping[str, Any]) -> list[Point]:
    """Returns the points that have a result.

    Args:
        text: the JSON that the earlier run wrote.
        environment: of this run, with its options. Its peers and its limit may be others.

    Raises:
        ValueError: if it is no such JSON, or was measured on something else; the message says on what.
    """
    try:
        result = json.loads(text)
        before, options = result["environment"], result["environment"]["options"]
        points = [point for point in result["points"] if "error" not in point]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("it is no result of this benchmark") from error
    now = json.loads(json.dumps(environment))  # tuples as lists
    pairs = [(name, before.get(name), now.get(name)) for name in _SAME]
    chosen = sorted((options.keys() | now["options"].keys()) - _MAY_DIFFER)
    for name, then, here in pairs + [(name, options.get(name), now["options"].get(name)) for name in chosen]:
        if then != here:
            raise ValueError(f"its {name} is {then!r} and not {here!r}")
    return points
