"""Tests that end otherwise with fusioncache than without it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thunder_suite.outcomes import Result

_UNREACHED = "unreached"
"""Nothing can be said of a test that one of the runs did not get to."""


@dataclass(frozen=True)
class Difference:
    """A test whose outcomes differ, why it has to if it has to, and how later runs of both ended."""

    id: str
    without: Result
    with_: Result
    explained: str = ""
    reruns: tuple[tuple[str, str], ...] = ()

    @property
    def flaky(self) -> bool:
        differing = sum(without != with_ for without, with_ in self.reruns)
        return bool(self.reruns) and 2 * differing <= len(self.reruns)

    @property
    def counts_against(self) -> bool:
        return not self.explained and not self.flaky


def differences(without, with_, explained):
    found = []
    for id_ in sorted(without.results.keys() | with_.results.keys()):
        one, other = without.result(id_), with_.result(id_)
        if one.outcome != other.outcome and _UNREACHED not in (one.outcome, other.outcome):
            reasons = (reason for pattern, reason in explained.items() if re.search(pattern, id_))
            found.append(Difference(id_, one, other, next(reasons, "")))
    return found


def again(found: Sequence[Difference], rerun: Callable[[list[str]], Any], times: int) -> list[Difference]:
    """Returns the differences with how their tests ended in further runs, of which there are none when time is over."""
    ids = [difference.id for difference in found if not difference.explained]
    result = {difference.id: difference for difference in found}
    for _ in range(times if ids else 0):
        runs = rerun(ids)
        if runs is None:
            break
        for id_ in ids:
            pair = runs[0].result(id_).outcome, runs[1].result(id_).outcome
            if _UNREACHED not in pair:
                result[id_] = replace(result[id_], reruns=(*result[id_].reruns, pair))
    return list(result.values())
