"""Calls and collectives, read from text such as people write and ``write_schedule`` does."""

import re

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, CallNode, Kind

_LINE = re.compile(r"(\w+) +(?:(\S.*?) = )?(\w+)\((.*?)\)")


def read_calls(text: str) -> CallGraph:
    """Reads a line such as ``reduce f:64 = all_reduce(a)`` for each call; ``:64`` are a value's bytes."""
    sizes: dict[str, int] = {}

    def read_names(written: str | None) -> tuple[str, ...]:
        found = [one.partition(":")[::2] for one in re.findall(r"[\w:]+", written or "")]
        sizes.update({name: int(size) for name, size in found if size})
        return tuple(name for name, _ in found)

    calls = []
    for line in text.strip().splitlines():
        kind, gives, name, takes = _LINE.match(line.strip()).groups()
        channel = kind if Kind(kind) in COLLECTIVES else ""
        calls.append(CallNode(Kind(kind), name, read_names(takes), read_names(gives), channel=channel))
    return CallGraph(tuple(calls), sizes)
