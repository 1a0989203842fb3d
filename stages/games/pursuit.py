"""Pursuit, a built-in game: two pursuers chase a faster evader, in hundreds of arenas (docs/pettingzoo.md).

The mechanics come first (`Arenas`), without games or rewards. Lengths are in metres, times in seconds. The constants
are tuned so that the scripted players of both sides win about half of their games, and skill decides the rest. Agents
pass through each other.

An agent observes its own position and velocity, the other agents' positions relative to its own and their velocities,
and the time left. A pursuer sees its teammate and then the evader; the evader sees the nearer pursuer and then the
other one. `ArenaView` splits observations for scripted players.

A game is an episode for all three agents. It ends when a pursuer catches the evader, or when the time is up, in which
case the evader wins. The time limit is part of the game's rules and all agents see the time left, so the episode is
terminated, never truncated. The final reward has the sign of the result, as ML-Agents' self-play expects. The two sides
are separate behaviours with teams of unequal size, which makes this the smallest asymmetric game.

There is a scripted player for each side. The players see what policies see, keep no state, and draw no random numbers.
The nearer pursuer runs at the evader; the farther one cuts off its escape. The evader considers positions all over the
arena and heads for the one with the greatest lead over the pursuers.

Axis letters: C arenas; the agents' axis has the pursuers first and the evader last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.games.group import BuiltinGame
from headrace.stages.games.scene import Display, Scene, area, disc, stroke

__all__ = ["PursuitGroup", "ScriptedEvader", "ScriptedPursuer"]


PURSUERS: Final = 2
AGENTS: Final = PURSUERS + 1
EVADER: Final = PURSUERS
"""Index of the evader on the agents' axis; the pursuers come first."""
PURSUER_TEAM: Final = 0
EVADER_TEAM: Final = 1

HALF_WIDTH: Final = 1.0
"""Half the side length of the arena, a square around the origin."""
TICK_S: Final = 0.04
"""Seconds per tick of motion; in one tick no agent moves farther than the catch distance."""
TICKS_PER_DECISION: Final = 3

PURSUER_SPEED: Final = 0.5
EVADER_SPEED: Final = 1.0
ACCELERATION: Final = 6.0
CATCH_DISTANCE: Final = 0.07
"""Distance between the centres of a pursuer and the evader at which the evader is caught."""

FASTEST: Final = CATCH_DISTANCE / TICK_S
"""Highest speed at which an agent moves no farther than the catch distance in one tick."""

START_WITHIN: Final = 0.35
"""Bound on both coordinates of the evader's start, near the centre. Pursuers start at the walls."""

STEP_REWARD: Final = 0.005
"""The evader's reward for each decision, and each pursuer's penalty."""
RESULT_REWARD: Final = 1.0
"""The winners' reward at a game's end, and the losers' penalty."""


SPEEDS: Floats = np.array([PURSUER_SPEED] * PURSUERS + [EVADER_SPEED], np.float32)
"""[3] top speed of each agent."""

_angles = np.arange(8) * (np.pi / 4)
DIRECTIONS: Floats = np.concatenate([np.zeros((1, 2)), np.stack([np.cos(_angles), np.sin(_angles)], 1)]).astype(
    np.float32
)
"""[9, 2] the actions' directions: stand still, then eight directions, anticlockwise from +x."""


@dataclass(frozen=True, slots=True)
class Arenas:
    """Positions and velocities of all agents in C arenas; `advance` changes the arrays in place."""

    places: Floats
    """[C, 3, 2] the agents' x and y positions, in metres."""
    speeds: Floats
    """[C, 3, 2] the agents' x and y velocities, in metres per second."""

    @classmethod
    def empty(cls, arenas: int) -> Arenas:
        """Return arenas with all agents at the centre, at rest."""
        return cls(np.zeros((arenas, AGENTS, 2), np.float32), np.zeros((arenas, AGENTS, 2), np.float32))

    def place(self, arenas: NDArray[np.signedinteger], random: np.random.Generator) -> None:
        """Move all agents to their starts: the evader near the centre, each pursuer anywhere along a wall."""
        count = len(arenas)
        draws = random.random((count, AGENTS, 2), dtype=np.float32)
        places = (2 * draws - 1) * np.float32(HALF_WIDTH)
        places[:, EVADER] *= np.float32(START_WITHIN / HALF_WIDTH)
        wall = random.integers(0, 4, (count, PURSUERS))
        sides = np.where(wall % 2, HALF_WIDTH, -HALF_WIDTH).astype(np.float32)
        pursuers = places[:, :PURSUERS]
        pursuers[..., 0] = np.where(wall < 2, sides, pursuers[..., 0])
        pursuers[..., 1] = np.where(wall < 2, pursuers[..., 1], sides)
        self.places[arenas] = places
        self.speeds[arenas] = 0.0


def advance(arenas: Arenas, wanted: Floats) -> None:
    """Move all agents by one tick.

    Args:
        arenas: changed in place.
        wanted: [C, 3, 2] each agent's target velocity.
    """
    speeds, places = arenas.speeds, arenas.places
    change = wanted - speeds
    size = np.sqrt(np.square(change).sum(axis=2, keepdims=True))
    most = np.float32(ACCELERATION * TICK_S)
    change *= most / np.maximum(size, most)
    speeds += change
    places += speeds * np.float32(TICK_S)
    speeds[np.abs(places) > HALF_WIDTH] = 0.0
    np.clip(places, -HALF_WIDTH, HALF_WIDTH, out=places)


def caught(arenas: Arenas, distance: float = CATCH_DISTANCE) -> NDArray[np.bool_]:
    """Return [C] True where a pursuer is at most `distance` metres from the evader."""
    way = arenas.places[:, :PURSUERS] - arenas.places[:, EVADER:]
    return np.asarray((np.square(way).sum(axis=2) <= distance**2).any(axis=1))


OBSERVATION_SIZE: Final = 4 * AGENTS + 1
"""Size of an observation: x, y, vx, vy of the agent and of both others, and the fraction of the game's time left."""


def observe(arenas: Arenas, time_left: Floats) -> tuple[Floats, Floats]:
    """Return the observations of pursuers [2 C, 13], grouped by arena, and of evaders [C, 13].

    Args:
        arenas: the arenas.
        time_left: [C] the fraction of the game's time that is left.
    """
    state = np.concatenate([arenas.places, arenas.speeds], axis=2)
    count = len(state)
    pursuers = np.empty((count, PURSUERS, OBSERVATION_SIZE), np.float32)
    pursuers[..., :4] = state[:, :PURSUERS]
    pursuers[..., 4:8] = _from(state[:, :PURSUERS], state[:, PURSUERS - 1 :: -1])
    pursuers[..., 8:12] = _from(state[:, :PURSUERS], state[:, EVADER:])
    pursuers[..., 12] = time_left[:, None]
    evaders = np.empty((count, OBSERVATION_SIZE), np.float32)
    evaders[:, :4] = state[:, EVADER]
    others = _from(state[:, EVADER:], state[:, :PURSUERS])
    distance = np.square(others[..., :2]).sum(axis=2)
    second_is_nearer = (distance[:, 1] < distance[:, 0])[:, None]
    evaders[:, 4:8] = np.where(second_is_nearer, others[:, 1], others[:, 0])
    evaders[:, 8:12] = np.where(second_is_nearer, others[:, 0], others[:, 1])
    evaders[:, 12] = time_left
    return pursuers.reshape(count * PURSUERS, OBSERVATION_SIZE), evaders


def _from(viewer: Floats, other: Floats) -> Floats:
    """Return the other agent's position relative to the viewer's, and the other agent's own velocity."""
    seen = np.broadcast_to(other, np.broadcast_shapes(viewer.shape, other.shape)).copy()
    seen[..., :2] -= viewer[..., :2]
    return seen


@dataclass(frozen=True, slots=True)
class ArenaView:
    """Observations [d, 13] split by agent, each [d, 4]: x, y (relative to the observer for other agents), vx, vy."""

    own: Floats
    first: Floats
    """[d, 4] the first other agent: a pursuer's teammate, or the pursuer nearer to the evader."""
    second: Floats
    """[d, 4] the second other agent: the evader if a pursuer observes, otherwise the farther pursuer."""

    @classmethod
    def of(cls, observations: Floats) -> ArenaView:
        """Split observations [d, 13]."""
        return cls(observations[:, :4], observations[:, 4:8], observations[:, 8:12])


_MARGIN: Final = 0.08
_PURSUER, _EVADER, _EDGE, _FLOOR = "#d1495b", "#2f9e6e", "#3a4250", "#f4f1ea"
_SIZE: Final = 0.045


def _keys() -> KeyMapSettings:
    """Return arrow keys for the four directions; two keys pressed together mean the direction between them."""
    arrows = {"ArrowRight": (1, 0), "ArrowLeft": (-1, 0), "ArrowUp": (0, 1), "ArrowDown": (0, -1)}
    press = {key: {"branch": 0, "value": _direction(*way)} for key, way in arrows.items()}
    for (first, way), (second, other) in product(list(arrows.items())[:2], list(arrows.items())[2:]):
        press[f"{first}+{second}"] = {"branch": 0, "value": _direction(way[0] + other[0], way[1] + other[1])}
    return KeyMapSettings.model_validate({"press": press})


def _direction(x: int, y: int) -> int:
    return int(np.argmax(DIRECTIONS[1:] @ np.array([x, y], np.float32))) + 1


ACTIONS = ActionSpec(discrete_branches=(len(DIRECTIONS),))
"""The choice is to stand still, or one of eight directions."""


class PursuitGroup(BuiltinGame):
    """`num_envs` arenas, each with two pursuers and an evader.

    Args:
        num_envs: number of arenas.
        time_limit_s: seconds that the evader must survive.
        pursuer: behaviour name of the pursuers, team 0.
        evader: behaviour name of the evader, team 1.
        evader_speed: the evader's top speed in m/s, unless it is an environment parameter.
        catch_distance: distance in metres between the centres of a pursuer and the evader at which the evader is
            caught.

    Raises:
        ValueError: if an option is out of range.
    """

    PARAMETERS: Mapping[str, str] = {
        "pursuer_speed": f"top speed of the pursuers, {PURSUER_SPEED:g} m/s by default",
        "evader_speed": f"top speed of the evader, {EVADER_SPEED:g} m/s by default",
    }

    def __init__(
        self,
        num_envs: int,
        *,
        time_limit_s: float = 6.0,
        pursuer: str = "Pursuer",
        evader: str = "Evader",
        evader_speed: float = EVADER_SPEED,
        catch_distance: float = CATCH_DISTANCE,
    ) -> None:
        self.pursuer_id, self.evader_id = f"{pursuer}?team={PURSUER_TEAM}", f"{evader}?team={EVADER_TEAM}"
        observation = ObservationSpec("arena", (OBSERVATION_SIZE,))
        super().__init__(num_envs, (self.pursuer_id, self.evader_id), observation, ACTIONS)
        if pursuer == evader:
            raise ValueError(
                f"PursuitGroup: pursuer and evader are both {pursuer!r}; the two sides have different observations"
            )
        self.game_decisions = int(time_limit_s / (TICK_S * TICKS_PER_DECISION))
        if self.game_decisions < 1:
            raise ValueError(
                f"PursuitGroup: time_limit_s is {time_limit_s}, shorter than one decision "
                f"({TICK_S * TICKS_PER_DECISION} s); raise it"
            )
        self.arenas = Arenas.empty(num_envs)
        self._decisions = np.zeros(num_envs, np.int32)
        if not 0 < evader_speed <= FASTEST:
            raise ValueError(
                f"PursuitGroup: evader_speed is {evader_speed}; it must be above 0 and at most {FASTEST:g} m/s, or the "
                "evader could leap over a pursuer between two ticks"
            )
        if not CATCH_DISTANCE <= catch_distance <= HALF_WIDTH:
            raise ValueError(
                f"PursuitGroup: catch_distance is {catch_distance}; it must be {CATCH_DISTANCE:g} to {HALF_WIDTH:g} m"
            )
        self._catch_distance = catch_distance
        self._top_speeds: Floats = np.tile(SPEEDS[:, None], (num_envs, 1, 1))
        self._top_speeds[:, EVADER] = evader_speed
        """[C, 3, 1] the agents' top speeds in the running games."""

    def reset(self, seed: int | None = None) -> StepResult:
        """Start a new game in every arena; without a seed, the random generator continues from its current state."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._decisions[:] = 0
        self._episodes[:] = 0
        self._begin_games(self._env_ids)
        none = self._env_ids[:0]
        return self._result(none, None, np.zeros(0, np.bool_), np.zeros(self.num_envs, np.float32), None)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Move all agents according to their decisions; restart finished games.

        Args:
            actions: keyed by behaviour id; two rows per arena for the pursuers, one for the evader.
        """
        fallen = self._move(actions)
        self._decisions += 1
        over = fallen | (self._decisions >= self.game_decisions)
        ended = np.flatnonzero(over).astype(np.int32)
        final = None
        lengths = self._decisions[ended] * (TICK_S * TICKS_PER_DECISION)
        if ended.size:
            left = Arenas(self.arenas.places[ended], self.arenas.speeds[ended])
            final = observe(left, self._time_left(ended))
            self._decisions[ended] = 0
            self._episodes[ended] += 1
            self._begin_games(ended)
        rewards = np.where(over, 0, STEP_REWARD).astype(np.float32)
        return self._result(ended, final, fallen[ended], rewards, lengths)

    @property
    def display(self) -> Display:
        """The fixed parts of an arena on a screen."""
        inner, outer = HALF_WIDTH + 0.03, HALF_WIDTH + _MARGIN
        corners = [(-inner, -inner), (inner, -inner), (inner, inner), (-inner, inner)]
        return Display(
            TICK_S,
            (-outer, -outer, 2 * outer, 2 * outer),
            ("#dcd6ca", "#dcd6ca"),
            [area(corners, _FLOOR), stroke([*corners, corners[0]], _EDGE, 0.02)],
            {self.pursuer_id: "pursuers, red", self.evader_id: "evader, green"},
            dict.fromkeys(self.behavior_ids, _keys()),
            "the evader wins when the bar is empty",
        )

    def scene(self, env_id: int = 0) -> Scene:
        """Return one arena's current appearance, as shapes."""
        places, speeds, reach = self.arenas.places[env_id], self.arenas.speeds[env_id], self._catch_distance
        shapes = [disc(float(x), float(y), reach, reach, "#d1495b2e") for x, y in places[:PURSUERS]]
        for number, ((x, y), speed) in enumerate(zip(places, speeds, strict=True)):
            ahead, colour = 0.12 * speed, _EVADER if number == EVADER else _PURSUER
            shapes.append(stroke([(x, y), (x + ahead[0], y + ahead[1])], colour, 0.015))
            shapes.append(disc(x, y, _SIZE, _SIZE, colour, _EDGE, 0.008))
        wide, top = 2 * HALF_WIDTH * float(self._time_left(self._env_ids)[env_id]), HALF_WIDTH + 0.055
        shapes.append(stroke([(-HALF_WIDTH, top), (-HALF_WIDTH + wide, top)], _EVADER, 0.02))
        firsts = zip(self.behavior_ids, (0, EVADER), strict=True)
        return Scene(shapes, {}, {key: (float(places[at, 0]), float(places[at, 1]) + _SIZE) for key, at in firsts})

    def _begin_games(self, arenas: NDArray[np.int32]) -> None:
        self.arenas.place(arenas, self._random)
        if self._parameters is not None:
            drawn = self._parameters.draw(arenas)
            if "pursuer_speed" in drawn:
                self._top_speeds[arenas, :PURSUERS, 0] = drawn["pursuer_speed"][:, None]
            if "evader_speed" in drawn:
                self._top_speeds[arenas, EVADER, 0] = drawn["evader_speed"]

    def _move(self, actions: Mapping[str, ActionBatch]) -> NDArray[np.bool_]:
        """Move the agents; return [C] True where the evader was caught."""
        chosen = np.empty((self.num_envs, AGENTS), np.int32)
        chosen[:, :PURSUERS] = actions[self.pursuer_id].discrete[:, 0].reshape(self.num_envs, PURSUERS)
        chosen[:, EVADER] = actions[self.evader_id].discrete[:, 0]
        wanted = DIRECTIONS[chosen] * self._top_speeds
        fallen = np.zeros(self.num_envs, np.bool_)
        for _ in range(TICKS_PER_DECISION):
            advance(self.arenas, wanted)
            fallen |= caught(self.arenas, self._catch_distance)
            if self.on_tick is not None:
                self.on_tick()
        return fallen

    def _time_left(self, arenas: NDArray[np.signedinteger]) -> Floats:
        share: Floats = (1 - self._decisions[arenas] / self.game_decisions).astype(np.float32)
        return share

    def _result(
        self,
        ended: NDArray[np.int32],
        final: tuple[Floats, Floats] | None,
        fallen: NDArray[np.bool_],
        rewards: Floats,
        game_seconds: NDArray[np.floating] | None,
    ) -> StepResult:
        """Return final rows (if any), then all decision rows; pursuers get the negative of the evader's rewards.

        Args:
            ended: [e] arenas whose game is over; they have already restarted.
            final: the last observations of pursuers and evaders in these arenas; None if no game is over.
            fallen: [e] True where the evader was caught.
            rewards: [C] the evader's rewards in the decision rows.
            game_seconds: [e] lengths of these games in seconds.
        """
        result = (STEP_REWARD + np.where(fallen, -RESULT_REWARD, RESULT_REWARD)).astype(np.float32)
        evaders_rewards = np.concatenate([result, rewards])
        env_ids = np.concatenate([ended, self._env_ids])
        episode_ids = np.concatenate([self._episodes[ended] - 1, self._episodes])
        now = observe(self.arenas, self._time_left(self._env_ids))
        steps = {}
        for behavior_id, count, first, side, sign in (
            (self.pursuer_id, PURSUERS, 0, 0, -1),
            (self.evader_id, 1, EVADER, 1, 1),
        ):
            number = np.tile(np.arange(first, first + count), len(env_ids))
            steps[behavior_id] = AgentSteps(
                agent_ids=np.repeat(env_ids.astype(np.int64) * AGENTS, count) + number,
                env_ids=np.repeat(env_ids, count),
                episode_ids=np.repeat(episode_ids, count),
                observations=(now[side] if final is None else np.concatenate([final[side], now[side]]),),
                rewards=np.repeat(sign * evaders_rewards, count),
                ended=len(ended) * count,
                terminated=np.ones(len(ended) * count, np.bool_),
                truncated=np.zeros(len(ended) * count, np.bool_),
            )
        if game_seconds is None or not ended.size:
            return StepResult(steps)
        outcomes = np.stack([fallen, ~fallen], axis=1).astype(np.float32)
        statistics = {"Pursuit/Game Seconds": float(game_seconds.mean()), "Pursuit/Caught": float(fallen.mean())}
        return StepResult(steps, GameResults(ended, outcomes), statistics)


_LEAD: Final = 0.6
"""A pursuer extrapolates the evader's motion over this fraction of the time it needs to reach the evader."""
_FLANK: Final = 0.35
"""Distance beyond the evader at which the farther pursuer aims, as a fraction of the nearer pursuer's distance."""
_GRID: Final = 7
"""Number of positions along each side of the arena that the evader considers."""
_ON_THE_WAY: Final = (0.25, 0.5, 1.0)
"""Fractions of the way to a position at which the evader compares times of arrival."""

_steps = np.linspace(-HALF_WIDTH, HALF_WIDTH, _GRID)
_REFUGES: Final[Floats] = np.stack(np.meshgrid(_steps, _steps), axis=-1).reshape(-1, 2).astype(np.float32)
"""[49, 2] the positions that the evader considers."""


class ScriptedPursuer:
    """Plays any number of pursuers simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d pursuers, given their observations [d, 13]."""
        seen = ArenaView.of(observations[0])
        mate, evader, flight = seen.first[:, :2], seen.second[:, :2], seen.second[:, 2:]
        distance = _size(evader)[:, None]
        mates_distance = _size(evader - mate)[:, None]
        aim = evader + flight * (_LEAD * distance / PURSUER_SPEED)
        beyond = (evader - mate) / np.maximum(mates_distance, 1e-6)
        flank = aim + beyond * (_FLANK * np.minimum(mates_distance, distance))
        aim = np.where(distance <= mates_distance, aim, flank)
        inside = np.clip(aim + seen.own[:, :2], -HALF_WIDTH, HALF_WIDTH) - seen.own[:, :2]
        return _towards(inside)

    __call__ = act


class ScriptedEvader:
    """Plays any number of evaders simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d evaders, given their observations [d, 13]."""
        seen = ArenaView.of(observations[0])
        way = _REFUGES - seen.own[:, None, :2]
        ahead = np.full(way.shape[:2], np.inf, np.float32)
        for share in _ON_THE_WAY:
            waypoint = share * way
            own_time = _size(waypoint) / EVADER_SPEED
            for pursuer in (seen.first, seen.second):
                pursuers_time = (_size(waypoint - pursuer[:, None, :2]) - CATCH_DISTANCE) / PURSUER_SPEED
                np.minimum(ahead, pursuers_time - own_time, out=ahead)
        return _towards(way[np.arange(len(way)), ahead.argmax(axis=1)])

    __call__ = act


def _size(way: Floats) -> Floats:
    """Return the lengths [...] of vectors [..., 2]."""
    return np.asarray(np.sqrt(np.square(way).sum(axis=-1)), np.float32)


def _towards(way: Floats) -> ActionBatch:
    """Return the action whose direction is nearest to each vector [d, 2]."""
    return _choices((way @ DIRECTIONS[1:].T).argmax(axis=1) + 1)


def _choices(choices: NDArray[np.signedinteger]) -> ActionBatch:
    return ActionBatch(np.zeros((len(choices), 0), np.float32), choices[:, None].astype(np.int32))
