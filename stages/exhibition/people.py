"""Who plays a shown game: people, by the keys that they press, and the players that decide for all other agents.

In a run's own instance, the brain `player` decides: a person's keys control all agents of a behaviour id, and the game
waits while no person plays. In a separate game, a `Cast` decides: a person takes over one agent, and the side's player
controls the others, as well as that agent once the person has left. `Person` translates the keys that a person is
holding down to an agent's action.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings, KeySettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.brains import BrainRequest, MemorylessPolicy
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import Player, uniform_player
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall

_ARROWS = ("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"), ("a", "d"), ("s", "w")
"""Pairs of keys that decrease and increase a value, for each of the first continuous actions."""
_DIGITS = "1234567890"
_TOGETHER = "+"
"""Separator between the names of keys that are pressed together."""


def keys_of(
    spec: BehaviorSpec, configured: Mapping[str, KeyMapSettings], usual: Mapping[str, KeyMapSettings]
) -> KeyMapSettings:
    """Return a behaviour id's keys.

    These are the YAML's keys for the id or its name, otherwise the game's default keys, otherwise arrows and digits.

    Args:
        spec: the behaviour id's spec.
        configured: the keys in `environment.keys`.
        usual: the game's default keys, keyed by behaviour id.

    Raises:
        StageError: if the YAML's keys do not fit the behaviour's actions.
    """
    for key in (spec.behavior_id, spec.name):
        if key in configured:
            check_keys(configured[key], choosable(spec), f"environment.keys.{key}", ("environment", "keys", key))
            return configured[key]
    return usual.get(spec.behavior_id) or default_keys(choosable(spec), spec.actions.masked)


def choosable(spec: BehaviorSpec) -> ActionSpec:
    """Return the actions that a person controls: all except a learned action repeat."""
    actions = spec.actions
    learned = spec.action_repeat == "learned"
    return ActionSpec(actions.continuous_size, actions.discrete_branches[:-1] if learned else actions.discrete_branches)


def default_keys(actions: ActionSpec, masked: bool = False) -> KeyMapSettings:
    """Return arrow keys for continuous actions and for branches with two choices, and digits for larger branches.

    An environment with masks is usually a board game, so if each choice has a key, the game waits for a key press.
    """
    press: dict[str, KeySettings] = {}
    for index, pair in enumerate(_ARROWS[: actions.continuous_size]):
        press |= {key: KeySettings(index=index, value=value) for key, value in zip(pair, (-1.0, 1.0), strict=True)}
    if actions.discrete_branches:
        choices = actions.discrete_branches[0]
        keys = _ARROWS[0] if choices == 2 and not actions.continuous_size else _DIGITS[:choices]
        press |= {key: KeySettings(branch=0, value=choice) for choice, key in enumerate(keys)}
    each_has_a_key = len(press) == sum(actions.discrete_branches) and not actions.continuous_size
    return KeyMapSettings(press=press, wait=masked and each_has_a_key)


def buttons(keys: KeyMapSettings) -> list[list[str]]:
    """Return the keys grouped by effect, one group per button of a page.

    A key that only has an effect together with others gets a button too.
    """
    groups: dict[KeySettings, list[str]] = {}
    for key, does in keys.press.items():
        if len(key) == 1 or _TOGETHER not in key:
            groups.setdefault(does, []).append(key)
    parts = [part for key in keys.press if len(key) > 1 for part in key.split(_TOGETHER)]
    return [*groups.values(), *([part] for part in dict.fromkeys(parts) if part not in keys.press)]


def check_keys(keys: KeyMapSettings, actions: ActionSpec, where: str, path: tuple[str, ...] = ()) -> None:
    """Check that keys refer to existing actions.

    Raises:
        StageError: if a key refers to an action that does not exist.
    """
    branches = actions.discrete_branches
    for key, does in keys.press.items():
        if does.index is not None and does.index >= actions.continuous_size:
            raise StageError(f"{where}.press.{key}: continuous action {does.index} does not exist: {actions}", key=path)
        if does.branch is not None and (does.branch >= len(branches) or does.value >= branches[does.branch]):
            raise StageError(
                f"{where}.press.{key}: branch {does.branch} has no choice {does.value:g}: {actions}", key=path
            )
    if keys.rest and (
        len(keys.rest) != len(branches) or any(not 0 <= at < of for at, of in zip(keys.rest, branches, strict=True))
    ):
        raise StageError(f"{where}.rest: {list(keys.rest)} is not a choice for each branch: {actions}", key=path)


def action_of(
    keys: KeyMapSettings, pressed: Collection[str], spec: BehaviorSpec, allowed: NDArray[np.bool_] | None
) -> ActionBatch | None:
    """Return one agent's action; None if the game is waiting for a key and no permitted key is pressed.

    Args:
        keys: the agent's keys.
        pressed: the pressed keys.
        spec: the agent's behaviour.
        allowed: [sum of branches] the agent's action mask; None permits all choices.
    """
    actions = spec.actions
    continuous = np.zeros((1, actions.continuous_size), np.float32)
    discrete = np.zeros((1, len(actions.discrete_branches)), np.int32)
    discrete[0, : len(keys.rest)] = keys.rest
    chosen = False
    for key, does in keys.press.items():
        if not set(key.split(_TOGETHER) if len(key) > 1 else key).issubset(pressed):
            continue
        if does.index is not None:
            continuous[0, does.index] += does.value
            chosen = True
        elif does.branch is not None and _may(actions, does.branch, int(does.value), allowed):
            discrete[0, does.branch] = int(does.value)
            chosen = True
    if keys.wait and not chosen:
        return None
    bounded = [index for index in range(actions.continuous_size) if index not in actions.unbounded]
    continuous[0, bounded] = continuous[0, bounded].clip(-1, 1)
    if allowed is not None:
        for branch, choices in enumerate(actions.discrete_branches):
            if not _may(actions, branch, int(discrete[0, branch]), allowed):  # the mask forbids the rest action
                discrete[0, branch] = next(c for c in range(choices) if _may(actions, branch, c, allowed))
    return ActionBatch(continuous, discrete)


def _may(actions: ActionSpec, branch: int, choice: int, allowed: NDArray[np.bool_] | None) -> bool:
    return allowed is None or bool(allowed[sum(actions.discrete_branches[:branch]) + choice])


# The keys that a person is holding down, as far as known: messages may be late, duplicated or lost.

LATE_S = 1.5
"""Seconds without a message after which no key counts as pressed; the page sends several messages a second."""
AWAY_S = 5.0
"""Seconds without a message after which the person counts as gone and the policy takes over."""
MOST_KEYS = 16


Masks = NDArray[np.bool_] | None
"""[d, sum of branches] action masks; None if the behaviour has none."""
_MISSED = 100
"""Number of the other agents' decisions after which a person whose agent has vanished gets a different agent."""


class Person:
    """A person who plays for a behaviour id, and the keys that the person is holding down.

    Args:
        clock: seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: frozenset[str] = frozenset()
        self._tapped: set[str] = set()
        self._number = -1
        self._heard = clock()
        self.agent: int | None = None
        """Id of the agent that the person has taken over; None until an agent of the behaviour id needs a decision."""
        self._missed = 0

    def receive_keys(self, number: int, held: Collection[str]) -> None:
        """Receive a message.

        Args:
            number: sequence number that increases with each of a person's messages; older or repeated messages are
                ignored.
            held: all keys that the person is holding down.
        """
        if number <= self._number:
            return
        self._number, self._heard = number, self._clock()
        now = frozenset(sorted(held)[:MOST_KEYS])
        self._tapped |= now - self._held
        self._held = now

    @property
    def present(self) -> bool:
        """True unless the person has left or the connection is lost."""
        return self._clock() - self._heard < AWAY_S

    @property
    def late(self) -> bool:
        """True if no key counts because no message has arrived for a while."""
        return self._clock() - self._heard >= LATE_S

    @property
    def pressed(self) -> frozenset[str]:
        """The keys that count: those being held down, and those tapped since the last decision."""
        return frozenset() if self.late else self._held | self._tapped

    @property
    def tapped(self) -> frozenset[str]:
        """The keys in `pressed` that were newly pressed since the last decision."""
        return frozenset(self._tapped) if self.pressed else frozenset()

    def decided(self) -> None:
        """Record that a decision has used the keys, so a tap counts only once."""
        self._tapped.clear()

    def choose_agent(self, agents: list[int]) -> None:
        """Take over one of the agents that need a decision, unless the person's agent may still return."""
        if self.agent is None and agents:
            self.agent = min(agents)
        self._missed = 0 if self.agent in agents else self._missed + bool(agents)
        if self._missed >= _MISSED:
            self.agent = None


class HumanControllers:
    """The people who play for behaviour ids, and the keys that they press.

    Args:
        keys: returns a behaviour id's keys.
        clock: seconds on a monotonic clock.
        must_play: returns True for a behaviour id that only a person controls, with all its agents. For others, a
            person takes over one agent.
    """

    def __init__(
        self,
        keys: Callable[[BehaviorSpec], KeyMapSettings],
        clock: Callable[[], float],
        must_play: Callable[[BehaviorSpec], bool] = lambda spec: False,
    ) -> None:
        self.must_play = must_play
        self.paused = False
        """True while a viewer has paused the game."""
        self.speed = 1.0
        """Speed relative to the game's own; 1 is normal."""
        self.changed = asyncio.Event()
        """Set when the state may have changed; each waiter clears the event before checking the state."""
        self._keys = keys
        self._clock = clock
        self._persons: dict[str, Person] = {}

    def direct(self, taken: Collection[str], paused: bool, speed: float) -> bool:
        """Set the behaviour ids for which people play, whether the game is paused, and its speed.

        Returns:
            True if a person has begun to play.
        """
        begun = bool({*taken} - self._persons.keys())
        self._persons = {behavior_id: self._persons.get(behavior_id) or Person(self._clock) for behavior_id in taken}
        self.paused, self.speed = paused, speed
        self.changed.set()
        return begun

    def receive_keys(self, behavior_id: str, number: int, held: Collection[str]) -> None:
        """Receive the keys that a person is holding down; see `Person.receive_keys`."""
        if behavior_id in self._persons:
            self._persons[behavior_id].receive_keys(number, held)
            self.changed.set()

    def decided(self, behavior_ids: Iterable[str]) -> None:
        """Record that the game has used the decisions for these behaviour ids, so a tap counts only once."""
        for behavior_id in self._persons.keys() & {*behavior_ids}:
            self._persons[behavior_id].decided()

    def person(self, behavior_id: str) -> Person | None:
        """Return the person who plays for a behaviour id; None if no person does, or the person has left."""
        person = self._persons.get(behavior_id)
        return person if person is not None and person.present else None

    @property
    def present(self) -> list[str]:
        """The behaviour ids for which a person plays and is present."""
        return [behavior_id for behavior_id in self._persons if self.person(behavior_id) is not None]

    def missing(self, specs: Iterable[BehaviorSpec]) -> list[str]:
        """Return the behaviour ids that only a person controls, but whose person has left or is silent."""
        ids = [spec.behavior_id for spec in specs if self.must_play(spec)]
        return [
            behavior_id for behavior_id in ids if behavior_id not in self._persons or self._persons[behavior_id].late
        ]

    def undecided(self, specs: Mapping[str, BehaviorSpec], steps: Mapping[str, AgentSteps]) -> str:
        """Return the behaviour id whose person must press a key; empty if no key is needed."""
        for behavior_id, rows in steps.items():
            person = self.person(behavior_id)
            if person is None:
                continue
            spec, agents = specs[behavior_id], rows.agent_ids[rows.ended :].tolist()
            person.choose_agent(agents)
            if (keys := self._keys(spec)).wait:
                controlled = self._controlled(spec, person, agents)
                if None in self._decided(keys, spec, _masks_of(rows, controlled), len(controlled)):
                    return behavior_id
        return ""

    def actions(self, spec: BehaviorSpec, masks: Masks, count: int) -> ActionBatch:
        """Return the pressed keys as actions for `count` agents, or the rest action if no key counts."""
        keys = self._keys(spec)
        rows = [*self._decided(keys, spec, masks, count)]
        if None in rows:  # a game that waits for a key continues if its person has just left
            rows = [*self._decided(keys.model_copy(update={"wait": False}), spec, masks, count)]
        decided = [action for action in rows if action is not None]
        if not decided:
            actions = spec.actions
            nothing = np.zeros((0, len(actions.discrete_branches)), np.int32)
            return ActionBatch(np.zeros((0, actions.continuous_size), np.float32), nothing)
        return ActionBatch(
            np.concatenate([action.continuous for action in decided]),
            np.concatenate([action.discrete for action in decided]),
        )

    def override(self, spec: BehaviorSpec, steps: AgentSteps, actions: ActionBatch) -> ActionBatch:
        """Return a player's actions, in which the person's keys decide for the agent that the person has taken over."""
        person = self.person(spec.behavior_id)
        if person is None:
            return actions
        rows = self._controlled(spec, person, steps.agent_ids[steps.ended :].tolist())
        pressed = self.actions(spec, _masks_of(steps, rows), len(rows))
        continuous, discrete = actions.continuous.copy(), actions.discrete.copy()
        continuous[rows], discrete[rows] = pressed.continuous, pressed.discrete
        return ActionBatch(continuous, discrete)

    def _controlled(self, spec: BehaviorSpec, person: Person, agents: list[int]) -> list[int]:
        """Return the rows of the agents that a person controls, among those that need a decision."""
        return [row for row, agent in enumerate(agents) if agent == person.agent or self.must_play(spec)]

    def _decided(
        self, keys: KeyMapSettings, spec: BehaviorSpec, masks: Masks, count: int
    ) -> Iterator[ActionBatch | None]:
        person = self._persons.get(spec.behavior_id)
        pressed: Collection[str] = ()
        if person is not None:
            pressed = person.tapped if keys.wait else person.pressed
        if masks is None:
            same = action_of(keys, pressed, spec, None)
            yield from (same for _ in range(count))
            return
        for row in range(count):
            yield action_of(keys, pressed, spec, masks[row])


def _masks_of(steps: AgentSteps, rows: list[int]) -> Masks:
    return None if steps.action_masks is None else steps.action_masks[rows]


class HumanBrain(MemorylessPolicy):
    """Decides for all agents of a behaviour id according to the keys that its person presses.

    Args:
        people: the source of the keys.
        spec: the behaviour id's spec.
    """

    def __init__(self, people: HumanControllers, spec: BehaviorSpec) -> None:
        self._people = people
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
        return Decision(self._people.actions(self._spec, masks, len(observations[0])), {})


def make_player(request: BrainRequest) -> ActingPolicy | None:
    """Make the brain `player`; return None if the request is only checked.

    Raises:
        StageError: if no person can play.
    """
    if request.spec is None:
        return None
    if request.person is None:
        raise StageError(f"{request.where}: a person can play only in the run's own game", request.key)
    return request.person(request.spec)


NEWEST = "newest"


class Cast:
    """The players of all behaviour ids, and the people who take over some of their agents.

    Args:
        make: makes the player with a name, or returns None for the newest policy of a behaviour that has none yet.
            Raises a StageError if there is no player with this name, or it can't play.
        people: the people.
    """

    def __init__(self, make: Callable[[BehaviorSpec, str], Player | None], people: HumanControllers) -> None:
        self._make = make
        self._people = people
        self.trouble = ""
        """Why the player chosen last is not playing; empty if that player is playing."""
        self._chosen: dict[str, str] = {}
        self._players: dict[str, tuple[str, Player]] = {}

    def give(self, behavior_id: str, player: str) -> None:
        """Let a different player play for a behaviour id, starting with the next decision."""
        if player != self._chosen.get(behavior_id, NEWEST):
            self.trouble = ""
        self._chosen[behavior_id] = player

    def decide(self, spec: BehaviorSpec, steps: AgentSteps) -> ActionBatch:
        """Decide for all agents of a behaviour id that need a decision.

        The player decides even if a person controls the only agent, because a policy with memory needs each
        observation.
        """
        return self._people.override(spec, steps, self._player(spec)(steps))

    def _player(self, spec: BehaviorSpec) -> Player:
        wanted = self._chosen.get(spec.behavior_id, NEWEST)
        name, player = self._players.get(spec.behavior_id, ("", None))
        if player is not None and name == wanted:
            return player
        try:
            player = self._make(spec, wanted)
        except StageError as error:  # for example an exported policy that the run has since removed
            self.trouble = f"{error}; {spec.behavior_id} acts at random"
            player = uniform_player(spec)
        if player is None:  # no policy exists yet; tried again at the next decision
            return uniform_player(spec)
        self._players[spec.behavior_id] = wanted, player
        return player
