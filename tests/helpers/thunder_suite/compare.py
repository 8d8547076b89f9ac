"""Tests that end otherwise with fusioncache than without it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from thunder_suite.outcomes import Result, Run

# Nothing can be said of a test that one of the runs did not get to.
_UNREACHED = "unreached"


@dataclass(frozen=True)
class Difference:
    """A test whose outcomes differ.

    ``explained`` is the reason why it has to differ, ``reruns`` are the outcomes of later runs of both.
    """

    id: str
    without: Result
    with_: Result
    explained: str = ""
    reruns: tuple[tuple[str, str], ...] = ()

    @property
    def flaky(self) -> bool:
        """Whether most times when both were run again they ended alike."""
        differing = sum(without != with_ for without, with_ in self.reruns)
        return bool(self.reruns) and 2 * differing <= len(self.reruns)

    @property
    def counts_against(self) -> bool:
        """Whether this is a difference that fusioncache has to answer for."""
        return not self.explained and not self.flaky


def differences(without: Run, with_: Run, explained: Mapping[str, str]) -> list[Difference]:
    """Each test that ended in two ways, in the order of their ids."""
    found = []
    for id_ in sorted(without.results.keys() | with_.results.keys()):
        one, other = without.result(id_), with_.result(id_)
        if one.outcome != other.outcome and _UNREACHED not in (one.outcome, other.outcome):
            reasons = (reason for pattern, reason in explained.items() if re.search(pattern, id_))
            found.append(Difference(id_, one, other, next(reasons, "")))
    return found


def again(
    found: Sequence[Difference], rerun: Callable[[list[str]], tuple[Run, Run] | None], times: int
) -> list[Difference]:
    """The same differences with what happened when their tests were run again.

    ``rerun`` runs tests by their ids without and with fusioncache. It returns None if there is no time left.
    """
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
