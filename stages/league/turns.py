"""The turns of a league's learners, if they learn one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Turns:
    """The turns of all learners in a league, in the learners' order.

    A learner's turn ends at the next multiple of its number of steps. So a turn that ends late, because the trainer's
    updates are large, is followed by a shorter one, and all learners get the same number of turns.

    Args:
        steps: the number of trainer steps in a turn, keyed by learner.
    """

    def __init__(self, steps: Mapping[str, int]) -> None:
        self._length = dict(steps)
        self._steps = dict.fromkeys(steps, 0)
        self._done: set[str] = set()
        self.learner = next(iter(steps))
        """Name of the learner whose turn it is."""
        self._end = self._next_end()

    @property
    def waiting(self) -> list[str]:
        """The learners that are waiting for their turn."""
        return [name for name in self._length if name != self.learner]

    def reported(self, learner: str, step: int, done: bool) -> bool:
        """Record a trainer's step, and whether the trainer is done; return True if a new turn begins."""
        self._steps[learner] = step
        (self._done.add if done else self._done.discard)(learner)  # a restarted trainer may not be done any more
        if self.learner not in self._done and self._steps[self.learner] < self._end:
            return False
        names = list(self._length)
        following = names.index(self.learner) + 1
        order = names[following:] + names[:following]
        before, self.learner = self.learner, next((name for name in order if name not in self._done), self.learner)
        self._end = self._next_end()
        return self.learner != before

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data, without the finished learners, because their trainers will report again."""
        return {"learner": self.learner, "end": self._end, "steps": dict(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; if the saved learner no longer exists, the first learner is next."""
        self._steps |= {name: int(step) for name, step in state["steps"].items() if name in self._steps}
        there = state["learner"] in self._length
        self.learner = str(state["learner"]) if there else next(iter(self._length))
        self._end = int(state["end"]) if there else self._next_end()

    def _next_end(self) -> int:
        length = self._length[self.learner]
        return (self._steps[self.learner] // length + 1) * length
