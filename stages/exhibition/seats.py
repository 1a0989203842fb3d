"""Seats: the places of persons in a run's own game, and the brain that decides by what they press."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains.protocol import BrainRequest, Memoryless
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import StageError
from headrace.stages.exhibition.cast import HeldKeys
from headrace.stages.exhibition.keys import action_of
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall

Masks = NDArray[np.bool_] | None
"""[d, sum of branches] action masks; None where nothing is masked."""


class Seats:
    """Who sits at which behaviour id, and what these persons press.

    Args:
        is_seat: says of a behaviour id whether a person decides for it.
        keys: gives the keys of a behaviour id.
        clock: seconds on a monotonic clock.
    """

    def __init__(
        self,
        is_seat: Callable[[BehaviorSpec], bool],
        keys: Callable[[BehaviorSpec], KeyMapSettings],
        clock: Callable[[], float],
    ) -> None:
        self.is_seat = is_seat
        self.paused = False
        """True while persons want the game to stand still."""
        self.speed = 1.0
        """1: the game's own pace."""
        self.changed = asyncio.Event()
        """Set whenever there is a reason to look again; whoever looks clears it."""
        self._keys = keys
        self._clock = clock
        self._hands: dict[str, HeldKeys] = {}

    def direct(self, taken: Collection[str], paused: bool, speed: float) -> None:
        """Let persons sit at these behaviour ids alone."""
        self._hands = {each: self._hands.get(each) or HeldKeys(self._clock) for each in taken}
        self.paused, self.speed = paused, speed
        self.changed.set()

    def hear(self, behavior_id: str, number: int, held: Collection[str]) -> None:
        """Take which keys a person holds; see `Hands.hear`."""
        if behavior_id in self._hands:
            self._hands[behavior_id].hear(number, held)
            self.changed.set()

    def decided(self) -> None:
        """The game goes on with what was decided: a tap counts once."""
        for hands in self._hands.values():
            hands.decided()

    def empty(self, specs: Iterable[BehaviorSpec]) -> list[str]:
        """Return the behaviour ids whose person is not there: nobody sits there, or nothing is heard any more."""
        ids = [spec.behavior_id for spec in specs if self.is_seat(spec)]
        return [each for each in ids if each not in self._hands or self._hands[each].late]

    def undecided(self, specs: Mapping[str, BehaviorSpec], steps: Mapping[str, AgentSteps]) -> str:
        """Return the behaviour id for whose person's key the game waits; empty if it waits for none."""
        for behavior_id, rows in steps.items():
            spec = specs[behavior_id]
            if self.is_seat(spec) and (keys := self._keys(spec)).wait:
                count = len(rows.agent_ids) - rows.ended
                if None in self._decided(keys, spec, rows.action_masks, count):
                    return behavior_id
        return ""

    def actions(self, spec: BehaviorSpec, masks: Masks, count: int) -> ActionBatch:
        """Return what is pressed as the actions of so many agents; at rest where nothing is that counts."""
        keys = self._keys(spec)
        rows = [*self._decided(keys, spec, masks, count)]
        if None in rows:  # a game that waits goes on without its person, who has just gone
            rows = [*self._decided(keys.model_copy(update={"wait": False}), spec, masks, count)]
        made = [each for each in rows if each is not None]
        if not made:
            actions = spec.actions
            nothing = np.zeros((0, len(actions.discrete_branches)), np.int32)
            return ActionBatch(np.zeros((0, actions.continuous_size), np.float32), nothing)
        return ActionBatch(
            np.concatenate([each.continuous for each in made]), np.concatenate([each.discrete for each in made])
        )

    def sit(self, spec: BehaviorSpec) -> PersonBrain:
        """Return what decides for a behaviour id."""
        return PersonBrain(self, spec)

    def _decided(
        self, keys: KeyMapSettings, spec: BehaviorSpec, masks: Masks, count: int
    ) -> Iterator[ActionBatch | None]:
        hands = self._hands.get(spec.behavior_id)
        pressed: Collection[str] = ()
        if hands is not None:
            pressed = hands.tapped if keys.wait else hands.pressed
        if masks is None:
            same = action_of(keys, pressed, spec, None)
            yield from (same for _ in range(count))
            return
        for row in range(count):
            yield action_of(keys, pressed, spec, masks[row])


class PersonBrain(Memoryless):
    """Decides for all agents of a behaviour id by the keys that its person presses.

    Args:
        seats: know these.
        spec: the behaviour id.
    """

    def __init__(self, seats: Seats, spec: BehaviorSpec) -> None:
        self._seats = seats
        self._spec = spec

    def act(
        self,
        observations: tuple[Array, ...],
        masks: Masks,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        return Decision(self._seats.actions(self._spec, masks, len(observations[0])), {})


def make_player(request: BrainRequest) -> ActingPolicy | None:
    """Make the brain, where there are seats.

    Raises:
        StageError: if there are none.
    """
    if request.spec is None:
        return None
    if request.person is None:
        raise StageError(f"{request.where}: a person plays in a run's own game alone", request.key)
    return request.person(request.spec)
