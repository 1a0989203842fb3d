"""Steps one instance at the game's own pace and shows each frame. The cast consists of the players of all behaviours.

The newest policy, a snapshot, a scripted player or random choice plays for each behaviour id. A person may take over
one of the agents. The original player keeps playing the others, and takes that agent back when the person leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import Player, uniform_player
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.keys import HeldKeys, action_of
from headrace.stages.exhibition.projector import Projector, Shown, Standings

NEWEST = "newest"
_MISSED = 100
"""Number of the other agents' decisions after which a person whose agent has vanished gets a different agent."""


class Players(Protocol):
    """The players that can be chosen."""

    def choices(self, spec: BehaviorSpec) -> Sequence[str]:
        """Return the names of the players available for a behaviour id; `newest` comes first."""
        ...

    def make(self, spec: BehaviorSpec, name: str) -> Player | None:
        """Make a player; return None for the newest policy of a behaviour that has none yet.

        Raises:
            StageError: if there is no player with this name, or it can't play.
        """
        ...


@dataclass(frozen=True, slots=True)
class Casting:
    """The player chosen for one behaviour id."""

    player: str = NEWEST
    """Name of the player, one of `Players.choices`."""
    person: bool = False
    """Whether a person takes over one of the behaviour id's agents."""


class Cast:
    """The players of all behaviour ids.

    Args:
        players: the players that can be chosen.
        keys: returns a behaviour id's keys.
        clock: seconds on a monotonic clock.
    """

    def __init__(
        self,
        players: Players,
        keys: Callable[[BehaviorSpec], KeyMapSettings],
        clock: Callable[[], float],
    ) -> None:
        self._choose_from = players
        self._keys = keys
        self._clock = clock
        self.trouble = ""
        """Why the player chosen last is not playing; empty if that player is playing."""
        self._parts: dict[str, Casting] = {}
        self._players: dict[str, tuple[str, Player]] = {}
        self._persons: dict[str, Person] = {}

    def give(self, behavior_id: str, part: Casting) -> None:
        """Let a different player play for a behaviour id, starting with the next decision."""
        if part.player != self.part(behavior_id).player:
            self.trouble = ""
        self._parts[behavior_id] = part
        if not part.person:
            self._persons.pop(behavior_id, None)
        elif behavior_id not in self._persons:
            self._persons[behavior_id] = Person(HeldKeys(self._clock))

    def part(self, behavior_id: str) -> Casting:
        """Return the player chosen for a behaviour id."""
        return self._parts.get(behavior_id, Casting())

    def hands(self, behavior_id: str) -> HeldKeys | None:
        """Return the keys that the person who plays for a behaviour id is holding down; None if no person does."""
        person = self._persons.get(behavior_id)
        return None if person is None else person.hands

    def person(self, behavior_id: str) -> Person | None:
        """Return the person who plays for a behaviour id; None if no person does, or the person has left."""
        person = self._persons.get(behavior_id)
        return person if person is not None and person.hands.there else None

    @property
    def seats(self) -> list[str]:
        """The behaviour ids for which people play, whether present or not."""
        return [*self._persons]

    @property
    def persons(self) -> list[str]:
        """The behaviour ids for which a person plays and is present."""
        return [behavior_id for behavior_id in self._persons if self.person(behavior_id) is not None]

    def decide(self, spec: BehaviorSpec, steps: AgentSteps) -> ActionBatch | None:
        """Decide for all agents of a behaviour id; return None if the game is waiting for a person to press a key.

        Raises:
            StageError: if a player can't play.
        """
        person = self.person(spec.behavior_id)
        deciding = steps.agent_ids[steps.ended :]
        if person is None:
            return self._player(spec)(steps)
        row = person.row(deciding.tolist())
        theirs = None
        if row is not None:
            allowed = None if steps.action_masks is None else steps.action_masks[row]
            keys = self._keys(spec)
            theirs = action_of(keys, person.hands.tapped if keys.wait else person.hands.pressed, spec, allowed)
            if theirs is None:
                return None  # no other player decides either, because one with memory must be called only once
            person.hands.decided()
        rest = self._player(spec)(steps)  # called even for one agent: a policy with memory needs each observation
        if theirs is None or row is None:
            return rest
        continuous, discrete = rest.continuous.copy(), rest.discrete.copy()
        continuous[row], discrete[row] = theirs.continuous[0], theirs.discrete[0]
        return ActionBatch(continuous, discrete)

    def _player(self, spec: BehaviorSpec) -> Player:
        wanted = self.part(spec.behavior_id).player
        name, player = self._players.get(spec.behavior_id, ("", None))
        if player is not None and name == wanted:
            return player
        try:
            player = self._choose_from.make(spec, wanted)
        except StageError as error:  # for example an exported policy that the run has since removed
            self.trouble = f"{error}; {spec.behavior_id} acts at random"
            player = uniform_player(spec)
        if player is None:  # no policy exists yet; tried again at the next decision
            return uniform_player(spec)
        self._players[spec.behavior_id] = wanted, player
        return player


class Person:
    """A person who is playing one agent.

    Args:
        hands: the keys that the person is holding down.
    """

    def __init__(self, hands: HeldKeys) -> None:
        self.hands = hands
        self.agent: int | None = None
        """The agent's id; None until an agent of the behaviour id needs a decision."""
        self._missed = 0

    def row(self, agents: list[int]) -> int | None:
        """Return the row of the person's agent among the agents that need a decision.

        Return None if that agent needs no decision.
        """
        if self.agent is None and agents:
            self.agent = min(agents)
        if self.agent in agents:
            self._missed = 0
            return agents.index(self.agent)
        self._missed += bool(agents)
        if self._missed >= _MISSED:
            self.agent = None
        return None


_WAIT_S = 0.1
"""Seconds between checks for whether the person has left, while the game waits for a key."""


class Show:
    """Plays one instance for viewers, until it is cancelled.

    Args:
        group: the group to step, with one instance.
        film: the source of frames.
        cast: the players that decide.
        show: called with each frame.
        played: called with each tick's rows and their actions.
        clock: seconds on a monotonic clock.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        group: EnvironmentGroup,
        film: FilmedGroup,
        cast: Cast,
        show: Callable[[Shown], Awaitable[None]],
        played: Callable[[StepResult, Mapping[str, ActionBatch]], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._group = group
        self._film = film
        self._cast = cast
        self._played = played
        self._sleep = sleep
        self._projector = Projector(film, show, clock, self._wait)
        self._running = asyncio.Event()
        self._running.set()
        self._restart = False

    def pace(self, speed: float, paused: bool) -> None:
        """Set the speed, as a multiple of the game's own pace, and whether the game is paused."""
        self._projector.speed = speed
        (self._running.clear if paused else self._running.set)()

    @property
    def standings(self) -> Standings:
        """The results of the games so far."""
        return self._projector.standings

    def restart(self) -> None:
        """Start a new game with the standings at zero, because the players have changed."""
        self._restart = True

    async def run(self, seed: int) -> None:
        """Play game after game, with this seed for the first."""
        result = await maybe_await(self._group.reset(seed))
        self._film.take()
        self._projector.begin()
        await self._begin_game()
        while True:
            await self._running.wait()
            if self._restart:
                self._restart, self._projector.standings = False, Standings()
                result = await maybe_await(self._group.reset())
                self._film.take()
                await self._begin_game()
            actions = await self._decide(result)
            if self._restart:
                continue
            self._played(result, actions)
            before = self._film.score
            result = await maybe_await(self._group.step(actions))
            if await self._projector.follow(before, result, self._group.behavior_specs, bool(self._cast.persons)):
                await self._begin_game()

    async def _decide(self, result: StepResult) -> dict[str, ActionBatch]:
        """Get all decisions; in a game that waits for keys, wait for the person who must decide."""
        specs = self._group.behavior_specs
        order = sorted(result.steps, key=lambda behavior_id: self._cast.person(behavior_id) is None)
        actions: dict[str, ActionBatch] = {}
        for behavior_id in order:
            while (decided := self._cast.decide(specs[behavior_id], result.steps[behavior_id])) is None:
                await self._projector.put("key", behavior_id)
                hands = self._cast.hands(behavior_id)
                if hands is not None:
                    hands.changed.clear()
                    await _wait_for(hands.changed, _WAIT_S)
                await self._running.wait()
                self._projector.begin()
                if self._restart:
                    return actions
            actions[behavior_id] = decided
        return {behavior_id: actions[behavior_id] for behavior_id in result.steps}

    async def _begin_game(self) -> None:
        if not self._cast.persons:
            return
        await self._projector.count_down()
        for behavior_id in self._cast.persons:
            hands = self._cast.hands(behavior_id)
            if hands is not None:
                hands.decided()  # taps during the wait were meant for the previous game

    async def _wait(self, seconds: float) -> None:
        await self._sleep(seconds)
        if not self._running.is_set():
            await self._running.wait()
            self._projector.begin()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
