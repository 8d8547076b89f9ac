"""What another supported Thunder prints otherwise: the golden texts are those of one version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from golden.sections import Section

LEFT_OUT: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {"lightning-thunder 0.2.7.dev20260201": re.compile(r"^ *# \(.*\) = prims\.shape\(.*\)\n?", re.MULTILINE)}
)
"""By version the lines that it does not print: ``getitem`` no longer asks for a shape."""
_VERSION = re.compile(r"^lightning-thunder .*$", re.MULTILINE)


def leave_out(golden: Sequence[Section], found: Sequence[Section]) -> tuple[list[Section], list[Section]]:
    """Returns both without what is known to differ between their versions of Thunder."""
    version = _VERSION.search(found[0].text) if found else None
    pattern = LEFT_OUT.get(version[0]) if version else None
    if version is None or pattern is None:
        return list(golden), list(found)
    same = [Section(each.title, _VERSION.sub(version[0], each.text)) for each in golden[:1]]
    rest, others = ([Section(each.title, pattern.sub("", each.text)) for each in part[1:]] for part in (golden, found))
    return [*same, *rest], [found[0], *others]
