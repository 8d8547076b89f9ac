"""What waits to be compiled in a crew, by weight."""

from __future__ import annotations

import heapq
from typing import Any


class Backlog:
    """Tasks by number. The heaviest leaves first; of equal ones the first that came."""

    def __init__(self) -> None:
        self._tasks: dict[int, Any] = {}
        self._order: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, number: int, weight: float, task: Any) -> None:
        """Adds a task whose number no other has had."""
        self._tasks[number] = task
        heapq.heappush(self._order, (-weight, number))

    def take_heaviest(self) -> tuple[int, Any] | None:
        """Takes a task out, and returns it with its number; None if nothing waits."""
        while self._order:
            _, number = heapq.heappop(self._order)
            if number in self._tasks:  # else it was taken by its number
                return number, self._tasks.pop(number)
        return None

    def take(self, number: int) -> bool:
        """Takes the task of this number out, and returns whether it waited."""
        return self._tasks.pop(number, None) is not None

    def take_all(self) -> list[int]:
        """Takes all tasks out, and returns their numbers."""
        numbers = list(self._tasks)
        self._tasks.clear()
        self._order.clear()
        return numbers
