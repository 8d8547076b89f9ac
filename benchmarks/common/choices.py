"""What fusioncache chose to do with the sums of each residual stream, for a benchmark's JSON and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fusioncache.accelerators.residual.plans import Choice


def describe_choices(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """Returns each choice as JSON."""
    return [
        {
            "stream": choice.stream,
            "sums": choice.sums,
            "plan": choice.plan.value,
            "costs": {plan.value: asdict(cost) for plan, cost in choice.costs.items()},
        }
        for choice in choices
    ]


def name_plans(choices: Iterable[Mapping[str, Any]]) -> str:
    """Returns the plans that were chosen, each named once."""
    return ", ".join(dict.fromkeys(choice["plan"] for choice in choices)) or "-"
