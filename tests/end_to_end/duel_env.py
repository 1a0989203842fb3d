"""An asymmetric game: hiders and seekers, as many as you like of each, and a referee who plays for nobody.

Everybody sees a number, -1 or 1, and has to answer it. The side with the larger share of right answers wins the game.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult


class Duel:
    """`num_envs` games, stepped together.

    Args:
        num_envs: games.
        hiders: of team 0.
        seekers: of team 1.
        referees: agents of a behaviour of their own, whose episodes are as long as games.
        length: decisions of a game.
        declares: whether it tells who has won.
    """

    def __init__(
        self,
        num_envs: int,
        hiders: int = 1,
        seekers: int = 2,
        referees: int = 0,
        length: int = 5,
        declares: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self._sizes = {"Hider?team=0": hiders, "Seeker?team=1": seekers, "Referee": referees}
        self._sizes = {behavior_id: size for behavior_id, size in self._sizes.items() if size}
        seen, actions = (ObservationSpec("asked", (1,)),), ActionSpec(discrete_branches=(2,))
        self.behavior_specs = {i: BehaviorSpec(i, seen, actions) for i in self._sizes}
        self._length, self._declares = length, declares
        self._random = np.random.default_rng(0)
        self._asked: dict[str, np.ndarray] = {}
        self._right: dict[str, np.ndarray] = {}
        self._t = 0
        self._game = 0

    def reset(self, seed: int | None = None) -> StepResult:
        self._random = np.random.default_rng(seed)
        self._begin()
        empty = GameResults(np.zeros(0, np.int32), np.zeros((0, 2), np.float32))
        return StepResult(self._rows(False, {}), empty if self._declares else None)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        for behavior_id, asked in self._asked.items():
            answers = actions[behavior_id].discrete[:, 0].reshape(asked.shape)
            self._right[behavior_id] += (answers == (asked > 0)).mean(axis=1)
        self._t += 1
        if self._t < self._length:
            self._ask()
            return StepResult(self._rows(False, {}))
        rewards, outcomes = self._judge()
        self._begin()
        games = GameResults(np.arange(self.num_envs, dtype=np.int32), outcomes) if self._declares else None
        return StepResult(self._rows(True, rewards), games)

    def close(self) -> None:
        pass

    def _judge(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Rewards [num_envs] of a game that is over, by behaviour id, and its outcomes [num_envs, teams]."""
        home, away = (self._right[i] for i in ("Hider?team=0", "Seeker?team=1"))
        won = np.sign(home - away)
        rewards = {"Hider?team=0": won, "Seeker?team=1": -won}
        if "Referee" in self._right:
            rewards["Referee"] = self._right["Referee"] / self._length
        return rewards, np.stack([1 + won, 1 - won], 1).astype(np.float32) / 2

    def _begin(self) -> None:
        self._t = 0
        self._game += 1
        self._right = {i: np.zeros(self.num_envs) for i in self._sizes}
        self._ask()

    def _ask(self) -> None:
        self._asked = {i: self._random.choice([-1.0, 1.0], (self.num_envs, n)) for i, n in self._sizes.items()}

    def _rows(self, over: bool, rewards: dict[str, np.ndarray]) -> dict[str, AgentSteps]:
        found, first = {}, 0
        for behavior_id, size in self._sizes.items():
            count = self.num_envs * size
            agents = np.arange(first, first + count)
            envs = np.repeat(np.arange(self.num_envs, dtype=np.int32), size)
            seen = self._asked[behavior_id].reshape(-1, 1).astype(np.float32)
            ended = count if over else 0
            last = np.repeat(rewards[behavior_id], size) if over else np.zeros(0)
            found[behavior_id] = AgentSteps(
                np.concatenate([agents[:ended], agents]),
                np.concatenate([envs[:ended], envs]),
                np.repeat([self._game - 1, self._game], [ended, count]),
                (np.concatenate([seen[:ended], seen]),),
                np.concatenate([last, np.zeros(count)]).astype(np.float32),
                ended,
                np.ones(ended, np.bool_),
                np.zeros(ended, np.bool_),
            )
            first += count
        return found


class Alone(Duel):
    """Seekers without anybody to seek."""

    def __init__(self, num_envs: int, **options: object) -> None:
        super().__init__(num_envs, declares=False)
        self._sizes = {"Seeker?team=1": 2}
        self.behavior_specs = {i: spec for i, spec in self.behavior_specs.items() if i in self._sizes}

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        self._right["Hider?team=0"] = np.zeros(self.num_envs)
        return super().step(actions)


class Crowd(Duel):
    """Teams of one behaviour, each for itself; more than one may have been the best."""

    name = "Ball"

    def __init__(self, num_envs: int, teams: int = 3, **options: object) -> None:
        super().__init__(num_envs)
        self._sizes = {f"{self.name.format(team)}?team={team}": 1 for team in range(teams)}
        (spec,) = {spec.observations: spec for spec in self.behavior_specs.values()}.values()
        self.behavior_specs = {i: BehaviorSpec(i, spec.observations, spec.actions) for i in self._sizes}

    def _judge(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        right = np.stack([self._right[i] for i in self._sizes], 1)
        best = right == right.max(axis=1, keepdims=True)
        outcomes = (best / best.sum(axis=1, keepdims=True)).astype(np.float32)
        return {i: right[:, team] / self._length for team, i in enumerate(self._sizes)}, outcomes


class Sides(Crowd):
    """Teams with a behaviour each."""

    name = "Side{}"


class Counted(Crowd):
    """Two teams that keep a tally of finished games beside this file: a file a process, a byte a game."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, teams=2)
        self._tally = Path(__file__).with_name(f"{os.getpid()}.games").open("ab", buffering=0)

    def _judge(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        self._tally.write(bytes(self.num_envs))
        return super()._judge()

    def close(self) -> None:
        self._tally.close()


class CountedSides(Counted):
    """The same, with a behaviour for each team."""

    name = "Side{}"


class Oldest:
    """Chooses the oldest snapshot."""

    def choose(self, candidates: list, random: np.random.Generator) -> int:
        return candidates[0].number


class Tired:
    """Chooses the newest, so many times, and then raises."""

    def __init__(self, choices: int) -> None:
        self._left = choices

    def choose(self, candidates: list, random: np.random.Generator) -> int:
        self._left -= 1
        if self._left < 0:
            raise ValueError("enough for today")
        return candidates[-1].number
