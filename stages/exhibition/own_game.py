"""The run's own game: the run's only instance, stepped at a human pace. People may play, and the game waits for them.

A seat is a person's place in the game; the seat's brain decides according to the keys that the person presses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains.protocol import BrainRequest, Memoryless
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.keys import HeldKeys, action_of
from headrace.stages.exhibition.projector import Projector, Shown
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall

Masks = NDArray[np.bool_] | None
"""[d, sum of branches] action masks; None if the behaviour has none."""


class Seats:
    """The people who play for behaviour ids, and the keys that they press.

    Args:
        is_seat: returns whether a person decides for a behaviour id.
        keys: returns a behaviour id's keys.
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
        """True while a person has paused the game."""
        self.speed = 1.0
        """Speed relative to the game's own; 1 is normal."""
        self.changed = asyncio.Event()
        """Set when the state may have changed; each waiter clears the event before checking the state."""
        self._keys = keys
        self._clock = clock
        self._hands: dict[str, HeldKeys] = {}

    def direct(self, taken: Collection[str], paused: bool, speed: float) -> None:
        """Set the behaviour ids for which people play, whether the game is paused, and its speed."""
        self._hands = {each: self._hands.get(each) or HeldKeys(self._clock) for each in taken}
        self.paused, self.speed = paused, speed
        self.changed.set()

    def hear(self, behavior_id: str, number: int, held: Collection[str]) -> None:
        """Receive the keys that a person is holding down; see `HeldKeys.hear`."""
        if behavior_id in self._hands:
            self._hands[behavior_id].hear(number, held)
            self.changed.set()

    def decided(self) -> None:
        """Record that the game has used the decisions, so a tap counts only once."""
        for hands in self._hands.values():
            hands.decided()

    def empty(self, specs: Iterable[BehaviorSpec]) -> list[str]:
        """Return the behaviour ids whose person is absent, because the seat is free or messages have stopped."""
        ids = [spec.behavior_id for spec in specs if self.is_seat(spec)]
        return [each for each in ids if each not in self._hands or self._hands[each].late]

    def undecided(self, specs: Mapping[str, BehaviorSpec], steps: Mapping[str, AgentSteps]) -> str:
        """Return the behaviour id whose person must press a key; empty if no key is needed."""
        for behavior_id, rows in steps.items():
            spec = specs[behavior_id]
            if self.is_seat(spec) and (keys := self._keys(spec)).wait:
                count = len(rows.agent_ids) - rows.ended
                if None in self._decided(keys, spec, rows.action_masks, count):
                    return behavior_id
        return ""

    def actions(self, spec: BehaviorSpec, masks: Masks, count: int) -> ActionBatch:
        """Return the pressed keys as actions for `count` agents, or the rest action if no key counts."""
        keys = self._keys(spec)
        rows = [*self._decided(keys, spec, masks, count)]
        if None in rows:  # a game that waits for a key continues if its person has just left
            rows = [*self._decided(keys.model_copy(update={"wait": False}), spec, masks, count)]
        decided = [each for each in rows if each is not None]
        if not decided:
            actions = spec.actions
            nothing = np.zeros((0, len(actions.discrete_branches)), np.int32)
            return ActionBatch(np.zeros((0, actions.continuous_size), np.float32), nothing)
        return ActionBatch(
            np.concatenate([each.continuous for each in decided]), np.concatenate([each.discrete for each in decided])
        )

    def sit(self, spec: BehaviorSpec) -> PersonBrain:
        """Return the brain for a behaviour id."""
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
    """Decides for all agents of a behaviour id according to the keys that its person presses.

    Args:
        seats: the source of the keys.
        spec: the behaviour id's spec.
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
    """Make the brain; return None if the request is only checked.

    Raises:
        StageError: if no person can play.
    """
    if request.spec is None:
        return None
    if request.person is None:
        raise StageError(f"{request.where}: a person can play only in the run's own game", request.key)
    return request.person(request.spec)


T = TypeVar("T")
PAUSED = "paused"
KEY = "key"


class OwnGame:
    """A group that withholds its rows until everyone who must decide on them is present.

    While rows are withheld, ticks are empty, and each ends when `Seats.changed` is set, so the actor can handle
    messages between ticks even while the game waits for people.

    Args:
        group: the group to step, with one instance; it is closed together with this one.
        film: the source of frames.
        seats: the people who play.
        show: called with each frame.
        tell: called with the reason (`paused`, `key` or behaviour ids) when a wait begins, and with an empty reason
            when the wait ends.
        clock: seconds on a monotonic clock.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        group: EnvironmentGroup,
        film: FilmedGroup,
        seats: Seats,
        show: Callable[[Shown], Awaitable[None]],
        tell: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.num_envs = group.num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        self.projector = Projector(film, show, clock, self._wait)
        self.has_deadlines = False
        """True while the game waits for people or for the time of the next frame, during which no progress is
        expected."""
        self._group = group
        self._film = film
        self._seats = seats
        self._tell = tell
        self._sleep = sleep
        self._kept: StepResult | None = None
        self._fresh = self._ending = False
        self._waits_for = ""
        if hasattr(group, "set_parameters"):
            self.set_parameters = group.set_parameters

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset the group, but return no rows that need a decision.

        The first `step` returns these rows, because people may be absent now.
        """
        result = await maybe_await(self._group.reset(seed))
        self.behavior_specs = self._group.behavior_specs
        self._film.take()
        self._kept, self._fresh = StepResult(result.steps), True
        await self._watched(self.projector.put())
        return replace(result, steps={})

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Step at the game's own pace, or wait for a change, after which the withheld rows may follow."""
        if self._kept is None:
            self._seats.decided()
            before = self._film.score
            self._kept = result = await maybe_await(self._group.step(actions))
            self.behavior_specs = self._group.behavior_specs
            self._fresh = await self._watched(self.projector.follow(before, result, self.behavior_specs, people=True))
        if not await self._watched(self._may_go_on(self._kept)):
            return StepResult({})
        kept, self._kept = self._kept, None
        return kept

    def request_stop(self) -> None:
        """End all waits, because the run is ending."""
        self._ending = True
        self._seats.changed.set()

    def close(self) -> Awaitable[None] | None:
        """Close the wrapped group."""
        return self._group.close()

    async def _may_go_on(self, kept: StepResult) -> bool:
        """Return True if all people who must decide are present; otherwise wait for a change and return False."""
        self.projector.speed = self._seats.speed
        absent, about = self._absent(), ""
        if not absent and self._fresh:
            self._fresh = False
            self.projector.begin()
            await self.projector.count_down()
            self._seats.decided()  # taps during the wait were meant for the previous game
            absent = self._absent()
        if not absent:
            about = self._seats.undecided(self.behavior_specs, kept.steps)
        await self._say(absent or (KEY if about else ""), about)
        if not absent and not about:
            return True
        self._fresh |= bool(absent)
        await self._seats.changed.wait()
        self._seats.changed.clear()
        self.projector.begin()
        return False

    def _absent(self) -> str:
        return PAUSED if self._seats.paused else ", ".join(self._seats.empty(self.behavior_specs.values()))

    async def _say(self, why: str, about: str) -> None:
        if why != self._waits_for:
            self._waits_for = why
            self._tell(why)
            if why:
                await self.projector.put(KEY if about else "", about)

    async def _watched(self, waiting: Awaitable[T]) -> T:
        self.has_deadlines = True
        try:
            return await waiting
        finally:
            self.has_deadlines = False

    async def _wait(self, seconds: float) -> None:
        if not self._ending:
            await self._sleep(seconds)
