"""Calls and collectives, read from text such as people write and ``write_schedule`` does."""

import re

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, CallNode, Kind

_LINE = re.compile(r"(\w+) +(?:(\S.*?) = )?(\w+)\((.*?)\)(.*)")


def read_calls(text: str) -> CallGraph:
    """Reads a line such as ``reduce f:64 = all_reduce(a)`` for each call; ``:64`` are a value's bytes.

    Behind the call may stand ``fixed``. A comment begins with ``#``.
    """
    sizes: dict[str, int] = {}

    def read_names(written: str | None) -> tuple[str, ...]:
        names = []
        for one in re.findall(r"[\w:]+", written or ""):
            name, _, size = one.partition(":")
            sizes.update({name: int(size)} if size else {})
            names.append(name)
        return tuple(names)

    calls = []
    for line in text.strip().splitlines():
        found = _LINE.match(line.partition("#")[0].strip())
        assert found, line
        kind, gives, name, takes, rest = found.groups()
        call = CallNode(
            Kind(kind),
            name,
            read_names(takes),
            read_names(gives),
            fixed="fixed" in rest,
            channel=kind if Kind(kind) in COLLECTIVES else "",
        )
        calls.append(call)
    return CallGraph(tuple(calls), sizes)
