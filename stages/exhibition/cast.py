"""The cast of a game: who plays for each behaviour id, and the persons among them.

A part is played by the newest policy, a snapshot, a scripted player or at random; a person may take over one of its
agents. The part's own player goes on with the others, and with that one when the person has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import StageError
from headrace.stages.evaluation.players import Player, uniform_player
from headrace.stages.exhibition.keys import action_of

NEWEST = "newest"
_MISSED = 100
"""Decisions of its mates after which an agent that does not come back is left for another one."""


class Players(Protocol):
    """Those who may play."""

    def choices(self, spec: BehaviorSpec) -> Sequence[str]:
        """The names of those who may play for a behaviour id; `newest` comes first."""
        ...

    def make(self, spec: BehaviorSpec, name: str) -> Player | None:
        """A player; None for the newest policy of a behaviour that has none yet.

        Raises:
            StageError: if there is none of this name, or it can't play.
        """
        ...


@dataclass(frozen=True, slots=True)
class Casting:
    """What is asked for one behaviour id."""

    player: str = NEWEST
    """Its name among the choices."""
    person: bool = False
    """True if a person takes over an agent of it."""


class Cast:
    """Who plays.

    Args:
        players: those who may play.
        keys: gives the keys of a behaviour id.
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
        """Why the player that was asked for last does not play."""
        self._parts: dict[str, Casting] = {}
        self._players: dict[str, tuple[str, Player]] = {}
        self._persons: dict[str, Person] = {}

    def give(self, behavior_id: str, part: Casting) -> None:
        """Give a part to another player, from the next decision on."""
        if part.player != self.part(behavior_id).player:
            self.trouble = ""
        self._parts[behavior_id] = part
        if not part.person:
            self._persons.pop(behavior_id, None)
        elif behavior_id not in self._persons:
            self._persons[behavior_id] = Person(HeldKeys(self._clock))

    def part(self, behavior_id: str) -> Casting:
        """Return the part of a behaviour id."""
        return self._parts.get(behavior_id, Casting())

    def hands(self, behavior_id: str) -> HeldKeys | None:
        """Return the hands of the person who plays for a behaviour id; None without one."""
        person = self._persons.get(behavior_id)
        return None if person is None else person.hands

    def person(self, behavior_id: str) -> Person | None:
        """Return the person who plays for a behaviour id; None if there is none, or has gone."""
        person = self._persons.get(behavior_id)
        return person if person is not None and person.hands.there else None

    @property
    def seats(self) -> list[str]:
        """The behaviour ids for which persons play, there or not."""
        return [*self._persons]

    @property
    def persons(self) -> list[str]:
        """The behaviour ids for which a person plays who is there."""
        return [behavior_id for behavior_id in self._persons if self.person(behavior_id) is not None]

    def decide(self, spec: BehaviorSpec, steps: AgentSteps) -> ActionBatch | None:
        """Decide for all agents of a behaviour id; None if the game waits for its person.

        Raises:
            StageError: if a player can't play.
        """
        person = self.person(spec.behavior_id)
        asked = steps.agent_ids[steps.ended :]
        if person is None:
            return self._player(spec)(steps)
        row = person.row(asked.tolist())
        theirs = None
        if row is not None:
            allowed = None if steps.action_masks is None else steps.action_masks[row]
            keys = self._keys(spec)
            theirs = action_of(keys, person.hands.tapped if keys.wait else person.hands.pressed, spec, allowed)
            if theirs is None:
                return None  # nobody else is asked either: players with memory are asked once
            person.hands.decided()
        rest = self._player(spec)(steps)  # also for a single agent: a policy with memory has to see what happens
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
        except StageError as error:  # such as an exported policy that the run has removed meanwhile
            self.trouble = f"{error}; {spec.behavior_id} acts at random"
            player = uniform_player(spec)
        if player is None:  # nothing is learned yet; asked again at the next decision
            return uniform_player(spec)
        self._players[spec.behavior_id] = wanted, player
        return player


class Person:
    """A person who plays one agent.

    Args:
        hands: what the person presses.
    """

    def __init__(self, hands: HeldKeys) -> None:
        self.hands = hands
        self.agent: int | None = None
        """The agent; None until one of the behaviour id is asked."""
        self._missed = 0

    def row(self, agents: list[int]) -> int | None:
        """Return the row of the person's agent among those that are asked; None if it is not."""
        if self.agent is None and agents:
            self.agent = min(agents)
        if self.agent in agents:
            self._missed = 0
            return agents.index(self.agent)
        self._missed += bool(agents)
        if self._missed >= _MISSED:
            self.agent = None
        return None


# Hands: which keys a person holds, as far as is known: messages come late, twice, or no more.

LATE_S = 1.5
"""Seconds without a message after which no key counts as pressed any more; the page sends several a second."""
AWAY_S = 5.0
"""Seconds without a message after which the person has gone, and the policy plays on."""
MOST_KEYS = 16


class HeldKeys:
    """The keys that one person holds.

    Args:
        clock: seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changed = asyncio.Event()
        """Set by each message."""
        self._clock = clock
        self._held: frozenset[str] = frozenset()
        self._tapped: set[str] = set()
        self._number = -1
        self._heard = clock()

    def hear(self, number: int, held: Collection[str]) -> None:
        """Take a message.

        Args:
            number: rising with each message of a person; one that is not newer than the last one is left out.
            held: all keys that are held now.
        """
        if number <= self._number:
            return
        self._number, self._heard = number, self._clock()
        now = frozenset(sorted(held)[:MOST_KEYS])
        self._tapped |= now - self._held
        self._held = now
        self.changed.set()

    @property
    def there(self) -> bool:
        """False if the person has gone, or the connection is lost."""
        return self._clock() - self._heard < AWAY_S

    @property
    def late(self) -> bool:
        """True if no key counts, as nothing has been heard for a while."""
        return self._clock() - self._heard >= LATE_S

    @property
    def pressed(self) -> frozenset[str]:
        """The keys that count: those that are held, and those that were tapped since the last decision."""
        return frozenset() if self.late else self._held | self._tapped

    @property
    def tapped(self) -> frozenset[str]:
        """Of these only those that were newly pressed since the last decision."""
        return frozenset(self._tapped) if self.pressed else frozenset()

    def decided(self) -> None:
        """A decision was made of them: a tap counts once."""
        self._tapped.clear()
        self.changed.clear()
