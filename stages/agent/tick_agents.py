"""Which agents a tick has: their slots, found at once where those decide that decided at the last tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.queues.messages import StepBatch
from headrace.stages.agent.agent_state import AgentState
from headrace.stages.slots import Numbers, Slots, Where, as_slice


@dataclass(slots=True)
class Deciding:
    """The agents that decide at a tick.

    Attributes:
        agent_ids: their ids, as bytes.
        slots: [d] theirs.
        where: the same, as a slice if they follow each other.
        stamps: of their decisions, as bytes.
        learning: number of their decisions that are learned from.
    """

    agent_ids: bytes
    slots: Numbers
    where: Where
    stamps: bytes = b""
    learning: int = 0


class TickAgents:
    """The agents of a behaviour id that have a slot.

    Args:
        capacity: number of agents to make room for at first.

    Attributes:
        slots: theirs.
    """

    def __init__(self, capacity: int) -> None:
        self.slots = Slots(capacity)
        self._last: Deciding | None = None

    def call(self, step: StepBatch, agents: AgentState) -> tuple[Where, Numbers, bool, Deciding]:
        """Find a tick's agents; new ones that decide get slots, and join `agents`.

        Returns:
            The slots of all [n]; those of agents that ended [ended]; whether some of the latter are unknown (`NOBODY`);
            and the agents that decide.
        """
        ended = step.ended
        # Comparing bytes costs a tenth of `array_equal`; identity would prove nothing, as arrays may be reused.
        key = step.agent_ids[ended:].tobytes()
        last = self._last
        if last is not None and last.agent_ids == key:
            if not ended:
                return last.where, _NONE, False, last
            ending, unknown = self.slots.look_up(step.agent_ids[:ended])
            return np.concatenate((ending, last.slots)), ending, len(unknown) > 0, last
        slots, new = self.slots.look_up(step.agent_ids)
        strangers = bool(ended and len(new) and new.item(0) < ended)
        if strangers:
            new = new[new.searchsorted(ended) :]
        if len(new):
            slots[new] = joined = self.slots.add(step.agent_ids[new])
            agents.join(joined, self.slots.total, step.env_ids[new])
        deciding = slots[ended:]
        self._last = last = Deciding(key, deciding, as_slice(deciding))
        return slots, slots[:ended], strangers, last

    def remove(self, slots: Numbers) -> None:
        """Forget agents."""
        if len(slots):
            self.slots.remove(slots)
            self._last = None

    def forget_stamps(self) -> None:
        """Have the stamps of the next decisions compared with those of the open ones."""
        self._last = None


_NONE = np.empty(0, np.int64)
