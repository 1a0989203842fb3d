"""Scores of policies that play without training: what one actor counts, and the scores summed over all actors.

A fixed number of episodes counts per behaviour and team, shared equally by all instances of all actors. Whether an
episode counts is decided at its start. Counting the episodes that end first would favour short ones, whose returns
often differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.policy.memories import PATIENCE

_LOOK_EVERY = 1000
"""Number of ticks between two searches for agents that have vanished."""
_FIRST_SLOTS = 64


def equal_shares(total: int, parts: int) -> NDArray[np.int64]:
    """Split `total` into `parts` integers that are as equal as possible, in descending order."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


class CountedEpisodes:
    """Counts one behaviour id's episodes. In each instance, the first episodes to *begin* count, up to a fixed number.

    An episode that never ends does not count. An instance that broke plays replacements for its lost episodes. If an
    instance closes for good, the other instances play its episodes. An agent without a row for `PATIENCE` ticks is not
    replaced.

    Args:
        shares: [instances] the number of episodes to count in each instance.
    """

    def __init__(self, shares: NDArray[np.int64]) -> None:
        self.returns: list[float] = []
        """Undiscounted return of each counted episode: the sum of the agent's own and its group's rewards."""
        self.lengths: list[int] = []
        """Number of the agent's decisions in each counted episode."""
        self.last_rewards: list[float] = []
        """Each counted episode's last reward, the agent's own plus its group's; NaN for a truncated episode."""
        self.running_in = np.zeros(len(shares), np.int64)
        """[instances] the number of counted episodes that are running."""
        self.unresolved = np.zeros(len(shares), np.bool_)
        """[instances] true from the start of a counted episode until the game's result is known (`resolve_games`), or
        until an episode starts that does not count."""
        self._open = int(shares.sum())
        self._left = shares.copy()
        self._instances = list(range(len(shares)))
        """Numbers of the instances that have not closed."""
        self._slots: dict[int, int] = {}
        """Indices into the arrays below, keyed by the id of each agent with a running episode."""
        self._free: list[int] = []
        self._env_ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.bool_)
        self._totals = np.zeros(0, np.float64)
        self._decisions = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        self._deciding: bytes | None = None
        """Ids, as bytes, of the agents that decided at the last tick, because the same agents usually decide at the
        next one. None if an agent has left."""
        self._where = np.zeros(0, np.int64)
        """Slots of the agents in `_deciding`."""
        self._tick = 0

    @property
    def complete(self) -> bool:
        """True if all counted episodes have ended."""
        return not self._open

    def resolve_games(self, env_ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Record that games [g] have ended, before the tick's rows are added; return which of the games count."""
        counts: NDArray[np.bool_] = self.unresolved[env_ids] | (self.running_in[env_ids] > 0)
        self.unresolved[env_ids] = False
        return counts

    def add(
        self, steps: AgentSteps | None, lost: NDArray[np.int32] | None, closed: NDArray[np.int32] | None = None
    ) -> None:
        """Add a tick: the behaviour id's rows, if any, the instances that broke, and those that closed for good."""
        self._tick += 1
        if closed is not None:
            self._share_anew({int(env_id) for env_id in closed})
        if lost is not None:  # before the rows are added, because they belong to the next episodes
            self.forget({int(env_id) for env_id in lost})
        if steps is not None:
            self._add_rows(steps)
        if self._tick % _LOOK_EVERY == 0:
            self._forget_vanished()

    def forget(self, lost: set[int]) -> None:
        """Drop these instances' running episodes; the instances will play replacements."""
        for agent, slot in [*self._slots.items()]:
            env_id = int(self._env_ids[slot])
            if env_id in lost:
                self._left[env_id] += self._leave(agent, slot)
        self.unresolved[[*lost]] = False

    def _add_rows(self, steps: AgentSteps) -> None:
        shared = steps.group_rewards  # without the group's rewards, a selfish policy would score best
        rewards = steps.rewards if shared is None else steps.rewards + shared
        counted = rewards if steps.undiscounted is None else steps.undiscounted.sum(axis=1)
        for row in range(steps.ended):
            self._end(steps, row, float(counted[row]), float(rewards[row]))
        agents = steps.agent_ids[steps.ended :]
        deciding = agents.tobytes()
        if deciding != self._deciding:
            envs = steps.env_ids[steps.ended :].tolist()
            self._where = np.array([*map(self._slot_of, agents.tolist(), envs)], np.int64)
            self._deciding = deciding
        self._totals[self._where] += counted[steps.ended :]
        self._decisions[self._where] += 1
        self._seen[self._where] = self._tick

    def _slot_of(self, agent: int, env_id: int) -> int:
        """Return an agent's slot. If the agent has no slot yet, start an episode for it."""
        slot = self._slots.get(agent)
        if slot is not None:
            return slot
        if not self._free:
            self._enlarge()
        slot = self._slots[agent] = self._free.pop()
        counts = bool(self._left[env_id] > 0)
        self._left[env_id] -= counts
        self.running_in[env_id] += counts
        self.unresolved[env_id] = counts or bool(self.unresolved[env_id] and self.running_in[env_id])
        self._env_ids[slot], self._counts[slot] = env_id, counts
        self._totals[slot] = self._decisions[slot] = 0
        return slot

    def _end(self, steps: AgentSteps, row: int, counted: float, reward: float) -> None:
        agent = int(steps.agent_ids[row])
        slot = self._slot_of(agent, int(steps.env_ids[row]))
        total, decisions = float(self._totals[slot]) + counted, int(self._decisions[slot])
        if self._leave(agent, slot):
            self._open -= 1
            self.returns.append(total)
            self.lengths.append(decisions)
            self.last_rewards.append(reward if steps.terminated[row] else np.nan)

    def _leave(self, agent: int, slot: int) -> bool:
        """Free an agent's slot; return True if the agent's episode counts."""
        del self._slots[agent]
        self._free.append(slot)
        self._deciding = None
        counts = bool(self._counts[slot])
        self.running_in[self._env_ids[slot]] -= counts
        return counts

    def _share_anew(self, closed: set[int]) -> None:
        """Distribute the shares of closed instances among the other instances.

        If no instance is left, the count is complete.
        """
        self.forget(closed)
        self._instances = [env_id for env_id in self._instances if env_id not in closed]
        for env_id in closed:
            left, self._left[env_id] = int(self._left[env_id]), 0
            for number, share in enumerate(equal_shares(left, len(self._instances)) if self._instances else ()):
                self._left[self._instances[number]] += share

    def _forget_vanished(self) -> None:
        for agent, slot in [*self._slots.items()]:
            if self._tick - self._seen[slot] > PATIENCE:
                self.unresolved[self._env_ids[slot]] = False
                self._open -= self._leave(agent, slot)

    def _enlarge(self) -> None:
        before = len(self._seen)
        total = max(_FIRST_SLOTS, 2 * before)
        for name in ("_env_ids", "_counts", "_totals", "_decisions", "_seen"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate((values, np.zeros(total - before, values.dtype))))
        self._free = [*range(total - 1, before - 1, -1)]


_WITHOUT_END = 2**62
"""Number of episodes that count if no limit is set."""


class EpisodeResults(NamedTuple):
    """A behaviour id's episodes and games, in the order in which they ended; plain data for messages."""

    returns: Sequence[float]
    lengths: Sequence[int]
    results: tuple[int, int, int]
    """Number of games won, drawn and lost."""


_NO_EPISODES = EpisodeResults((), (), (0, 0, 0))


class ScoreKeeper:
    """Keeps the score of one actor's play.

    The environment declares the result of each game. If it declares none, a behaviour with self-play takes the sign of
    an episode's last reward as the result, as self-play's ratings do.

    Args:
        wanted: episodes per behaviour id over all actors; None for no limit.
        replica: number of the actor.
        replicas: number of actors.
        competes: returns True if the named behaviour has self-play.
        on_complete: called once, when all counted episodes have ended.
    """

    def __init__(
        self,
        wanted: int | None = None,
        replica: int = 0,
        replicas: int = 1,
        competes: Callable[[str], bool] = lambda name: False,
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self.complete = False
        """True if all counted episodes have ended."""
        self._wanted = wanted
        self._replica = replica
        self._replicas = replicas
        self._competes = competes
        self._on_complete = on_complete
        self._num_envs = 0
        self._declares = False
        self._counted: dict[str, CountedEpisodes] = {}
        self._results: dict[str, list[int]] = {}

    def begin(self, num_envs: int, result: StepResult) -> None:
        """Add the result of a reset of all instances. The instances will replay their unfinished episodes."""
        self._num_envs = num_envs
        for counted in self._counted.values():
            counted.forget({*range(num_envs)})
        self.add(result)

    def add(self, result: StepResult) -> None:
        """Add a tick's result."""
        for behavior_id in result.steps:
            if behavior_id not in self._counted:
                self._counted[behavior_id] = CountedEpisodes(self._shares())
                self._results[behavior_id] = [0, 0, 0]
        if result.games is not None:
            self._declares = True
            if len(result.games.env_ids):
                self._add_games(result.games)
        for behavior_id, counted in self._counted.items():
            counted.add(result.steps.get(behavior_id), result.lost, result.closed)
        # All counted episodes must have ended, and all games that decide their results.
        complete = (
            counted.complete and not (self._declares and counted.unresolved.any()) for counted in self._counted.values()
        )
        if not self.complete and self._counted and all(complete):
            self.complete = True
            self._on_complete()

    def drain(self) -> dict[str, EpisodeResults]:
        """Return the episodes and games added since the last call, keyed by behaviour id."""
        drained = {}
        for behavior_id, counted in self._counted.items():
            results = self._results[behavior_id]
            if not self._declares and self._competes(behavior_name(behavior_id)):
                for reward in counted.last_rewards:
                    if not math.isnan(reward):
                        results[1 - int(np.sign(reward))] += 1
            won, drawn, lost = results
            drained[behavior_id] = EpisodeResults([*counted.returns], [*counted.lengths], (won, drawn, lost))
            for gathered in (counted.returns, counted.lengths, counted.last_rewards):
                gathered.clear()
            self._results[behavior_id] = [0, 0, 0]
        return drained

    def _shares(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        if self._wanted is None:
            return np.full(self._num_envs, _WITHOUT_END // self._num_envs)
        first = self._replica * self._num_envs
        return equal_shares(self._wanted, self._replicas * self._num_envs)[first : first + self._num_envs]

    def _add_games(self, games: GameResults) -> None:
        if games.outcomes.shape[1] < 2:
            return
        for behavior_id, counted in self._counted.items():
            outcomes = games.outcomes[counted.resolve_games(games.env_ids)]
            team = behavior_team(behavior_id)
            if team >= outcomes.shape[1]:
                continue
            lead = np.sign(outcomes[:, team] - np.delete(outcomes, team, axis=1).max(axis=1))
            for outcome, sign in enumerate((1, 0, -1)):
                self._results[behavior_id][outcome] += int(np.count_nonzero(lead == sign))


@dataclass(frozen=True, slots=True)
class Score:
    """A behaviour id's score: over its agents' episodes, and over its games if teams play each other."""

    episodes: int
    mean: float
    """Mean undiscounted return, which sums the agents' own and their group's rewards."""
    deviation: float
    """Population standard deviation of the returns."""
    lowest: float
    highest: float
    length: float
    """Mean number of decisions per agent and episode."""
    shortest: int
    longest: int
    won: int = 0
    """Number of games won."""
    drawn: int = 0
    lost: int = 0
    rating: float | None = None
    """The policy's ELO rating at the end of training with self-play; None otherwise."""
    returns: tuple[float, ...] = ()
    """Each episode's return, if the number of episodes was fixed in advance; otherwise empty."""
    lengths: tuple[int, ...] = ()

    @property
    def games(self) -> int:
        """Number of games with a result."""
        return self.won + self.drawn + self.lost


def score_of(returns: Sequence[float], lengths: Sequence[int]) -> Score:
    """Return the score of episodes with these returns and lengths, without games and without the list of returns."""
    values, steps = np.array(returns), np.array(lengths)
    spread = float(values.mean()), float(values.std()), float(values.min()), float(values.max())
    return Score(len(values), *spread, float(steps.mean()), int(steps.min()), int(steps.max()))


class ScoreSums:
    """A behaviour id's running score, stored as sums because play may last for days.

    Args:
        keep: whether to keep each episode's return too.
        played: the first episodes and games.
    """

    def __init__(self, keep: bool, played: EpisodeResults = _NO_EPISODES) -> None:
        values, steps = np.asarray(played.returns, np.float64), played.lengths
        self._keep = keep
        self._count = len(values)
        self._mean = float(values.mean()) if self._count else 0.0
        self._squares = float(values.var()) * self._count if self._count else 0.0
        self._range = min(played.returns, default=math.inf), max(played.returns, default=-math.inf)
        self._steps = sum(steps)
        self._shortest, self._longest = min(steps, default=2**62), max(steps, default=0)
        self._returns = [*played.returns] if keep else []
        self._lengths = [*played.lengths] if keep else []
        self._results = [*played.results]

    def add(self, played: EpisodeResults) -> None:
        """Add an actor's episodes and games."""
        self.join(ScoreSums(self._keep, played))

    def join(self, other: ScoreSums) -> None:
        """Add the episodes and games of another `ScoreSums`."""
        count = self._count + other._count
        if count:
            # Chan, Golub and LeVeque (1983), eq. 2.1: the squared deviations of two combined samples.
            gap = other._mean - self._mean
            self._squares += other._squares + gap * gap * self._count * other._count / count
            self._mean += gap * other._count / count
        self._count = count
        self._range = min(self._range[0], other._range[0]), max(self._range[1], other._range[1])
        self._steps += other._steps
        self._shortest, self._longest = min(self._shortest, other._shortest), max(self._longest, other._longest)
        self._returns += other._returns
        self._lengths += other._lengths
        self._results = [a + b for a, b in zip(self._results, other._results, strict=True)]

    def score(self, rating: float | None) -> Score | None:
        """Return the score, or None if no episode has been counted."""
        if not self._count:
            return None
        won, drawn, lost = self._results
        return Score(
            self._count,
            self._mean,
            math.sqrt(self._squares / self._count),
            *self._range,
            self._steps / self._count,
            self._shortest,
            self._longest,
            won,
            drawn,
            lost,
            rating,
            tuple(self._returns),
            tuple(self._lengths),
        )


def score_table(scores: Mapping[str, Score]) -> str:
    """Return scores as a text table with one line per behaviour id."""
    games = any(score.games for score in scores.values())
    rated = any(score.rating is not None for score in scores.values())
    heading = ["behaviour", "episodes", "mean return ± SD", "min", "max", "length (min to max)"]
    heading += ["won", "drawn", "lost"] * games + ["ELO"] * rated
    rows = [heading]
    for behavior_id, score in scores.items():
        row = [behavior_id, str(score.episodes), f"{score.mean:.3f} ± {score.deviation:.3f}"]
        row += [f"{score.lowest:.3f}", f"{score.highest:.3f}"]
        row += [f"{score.length:.1f} ({score.shortest} to {score.longest})"]
        if games:
            results = (score.won, score.drawn, score.lost)
            row += [f"{n} ({100 * n / score.games:.0f} %)" if score.games else "" for n in results]
        if rated:
            row += ["" if score.rating is None else f"{score.rating:.0f}"]
        rows.append(row)
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equal length as lines with aligned columns; the first column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
