"""A trainer that does not learn: it tests a game that speaks the open protocol, or plays it with random actions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import uniform_actions
from headrace.stages.environments.engines.errors import GameEnded, MessageError
from headrace.stages.environments.engines.open_protocol.game import OpenGame
from headrace.stages.environments.engines.open_protocol.messages import Hello, actions_part, read_state
from headrace.stages.environments.engines.rows import GameRows
from headrace.stages.errors import StageError

_END_S = 10.0
"""Seconds to wait for a game to exit after `close`, as in a run."""
_SEED = 7
_LONG_SILENT = 200
"""Number of states without a row for a running agent, after which the agent counts as lost."""


class _BehaviorStatistics:
    """Statistics of one behaviour's agents so far."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self.decisions = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.truncated = 0
        self.rewarded = False
        self.changed = False
        self._states = 0
        self._running: dict[int, tuple[float, int]] = {}
        self._heard: dict[int, int] = {}
        """Per running agent: the number of the last state that had a row for the agent."""
        self._first: NDArray[Any] | None = None

    def pass_state(self) -> None:
        """Count a state, whether or not it has rows for the behaviour."""
        self._states += 1

    def silent(self) -> list[int]:
        """Return the running agents that have not requested a decision for a long time."""
        return [agent for agent, state in self._heard.items() if self._states - state > _LONG_SILENT]

    def add(self, rows: GameRows) -> None:
        """Count a state's rows.

        Raises:
            MessageError: if an agent's episode ends although it never began.
        """
        self.truncated += int(rows.interrupted.sum())
        for index, (agent, reward) in enumerate(zip(rows.ids.tolist(), rows.rewards.tolist(), strict=True)):
            total, length = self._running.pop(agent, (0.0, -1))
            if index >= rows.ended:
                self._heard[agent] = self._states
            elif self._heard.pop(agent, None) is None:
                raise MessageError(
                    f"ended agent {agent} of {self.spec.behavior_id}, which has not requested a decision since its "
                    "last end, or has never requested one: an episode begins with an agent's request"
                )
            if length >= 0:
                self.rewarded |= reward != 0
            if index < rows.ended:
                self.returns.append(total + reward)
                self.lengths.append(max(0, length) + 1)
            else:
                self._running[agent] = (total + reward if length >= 0 else 0.0, length + 1)
        self.decisions += len(rows) - rows.ended
        if len(rows) and not self.changed:
            whole = np.concatenate([column[-1].reshape(-1).astype(np.float64) for column in rows.observations])
            self.changed = self._first is not None and not np.array_equal(whole, self._first)
            self._first = whole if self._first is None else self._first

    def forget(self) -> None:
        """Forget the running episodes, because all agents begin new episodes."""
        self._running.clear()
        self._heard.clear()

    def words(self) -> str:
        """Summarise the statistics in one line."""
        line = f"{self.spec.behavior_id}: {self.decisions:,} decisions, {len(self.returns):,} episodes"
        if self.returns:
            mean, length = np.mean(self.returns), np.mean(self.lengths)
            line += (
                f" of {length:.1f} decisions ({self.truncated:,} truncated), mean return {mean:.3f} with random actions"
            )
        return line


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report."""

    kind: str
    """`ok`, `note` or `FAIL`."""
    text: str


class RandomTrainer:
    """Plays a game with random actions.

    Args:
        game: the game, not started yet.
    """

    def __init__(self, game: OpenGame) -> None:
        self.game = game
        self.seen: dict[str, _BehaviorStatistics] = {}
        self._random = np.random.default_rng(0)
        self._asked: dict[str, GameRows] = {}
        self.statistics: set[str] = set()
        """Names of the statistics received."""
        self.idle = 0
        """Number of states in which no agent needed a decision."""

    async def start(self) -> Hello:
        """Connect to the game; return its hello."""
        await self.game.start()
        hello = self.game.hello
        self.seen = {behavior_id: _BehaviorStatistics(spec) for behavior_id, spec in hello.specs.items()}
        return hello

    async def reset(self, parameters: Mapping[str, float], seed: int | None = None) -> dict[str, Any]:
        """Reset all agents; return the state."""
        for behavior in self.seen.values():
            behavior.forget()
        return await self._take(await self.game.request_reset(parameters, seed))

    async def step(self, parameters: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Send the requested actions; return the next state."""
        parts = {}
        for behavior_id, rows in self._asked.items():
            if len(rows) > rows.ended:
                actions, count = self.seen[behavior_id].spec.actions, len(rows) - rows.ended
                batch = uniform_actions(actions, count, rows.action_masks, self._random)
                parts[behavior_id] = actions_part(rows.ids[rows.ended :], batch)
        return await self._take(await self.game.request_step(parts, parameters))

    async def _take(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            specs = {behavior_id: seen.spec for behavior_id, seen in self.seen.items()}
            state = read_state(message, specs)
            self._asked = dict(state.rows)
            for seen in self.seen.values():
                seen.pass_state()
            for behavior_id, rows in self._asked.items():
                self.seen[behavior_id].add(rows)
        except MessageError as error:
            raise await self.game.refuse(str(error)) from None
        self.statistics.update(state.statistics)
        self.idle += not self.asking
        return message

    @property
    def asking(self) -> int:
        """Number of agents that need a decision."""
        return sum(len(rows) - rows.ended for rows in self._asked.values())


async def check_game(game: OpenGame, steps: int) -> AsyncIterator[Line]:
    """Test a game's hello, resets, random steps, parameters and shutdown; yield a report line for each test.

    Args:
        game: the game, not started yet.
        steps: number of steps.
    """
    trainer = RandomTrainer(game)
    try:
        hello = await trainer.start()
        for spec in hello.specs.values():
            yield Line("ok", f"announces {spec.behavior_id}: {spec.seen}; {spec.actions}")
        first = await trainer.reset({}, _SEED)
        yield Line("ok", f"answers a reset: {_asking(trainer.asking)}")
        began = time.perf_counter()
        for _ in range(steps):
            await trainer.step()
        yield Line("ok", f"answers {steps:,} steps, {steps / (time.perf_counter() - began):,.0f} a second")
        for line in _summed_up(trainer, steps):
            yield line
        await trainer.step({"difficulty": 0.5})
        await trainer.step()
        yield Line("ok", "accepts environment parameters between steps")
        again = await trainer.reset({"difficulty": 1.0}, _SEED)
        yield Line("ok", f"answers a second reset: {_asking(trainer.asking)}")
        if _without_ids(first) != _without_ids(again):
            yield Line("note", "a reset with the same seed starts differently, so runs can't be reproduced exactly")
        await trainer.step()
        began = time.monotonic()
        await game.close(_END_S)
        if game.pid is not None:
            took = time.monotonic() - began
            late = took >= _END_S
            yield Line("FAIL" if late else "ok", f"{'does not end' if late else 'ends'} within {_END_S:g} s of close")
    except GameEnded as end:
        yield Line("note", f"{end}; the tests after that did not run")
    except StageError as error:
        yield Line("FAIL", str(error))
    finally:
        await game.close(_END_S)


def _summed_up(trainer: RandomTrainer, steps: int) -> Iterator[Line]:
    for seen in trainer.seen.values():
        yield Line("ok", seen.words())
        for note in _notes(seen):
            yield Line("note", note)
    if trainer.statistics:
        yield Line("ok", f"sends the statistics {', '.join(sorted(trainer.statistics))}")
    if trainer.idle > steps / 2:
        yield Line(
            "note",
            f"in {trainer.idle:,} of {steps:,} states, no agent requested a decision: "
            "an agent must request one to begin its next episode",
        )


def _asking(count: int) -> str:
    return "1 agent requests a decision" if count == 1 else f"{count} agents request a decision"


def _notes(seen: _BehaviorStatistics) -> list[str]:
    name = seen.spec.behavior_id
    notes = []
    if not seen.decisions:
        notes.append(f"{name}: no agent has requested a decision")
    if seen.decisions and not seen.returns:
        notes.append(f"{name}: no episode has ended, so returns are unknown; send 'ended'")
    if seen.decisions and not seen.rewarded:
        notes.append(f"{name}: all rewards were 0; learning needs some rewards other than 0")
    if seen.decisions and not seen.changed:
        notes.append(f"{name}: its agents' observations have never changed")
    if silent := seen.silent():
        agents = ", ".join(map(str, silent[:5])) + (", …" if len(silent) > 5 else "")
        notes.append(
            f"{name}: these agents neither requested a decision nor ended for over {_LONG_SILENT} states: {agents}; an "
            "agent must end before it leaves"
        )
    return notes


def _without_ids(state: Mapping[str, Any]) -> Any:
    """Return the observations in a state."""
    return {
        behavior_id: part.get("deciding", {}).get("observations")
        for behavior_id, part in state.get("agents", {}).items()
    }
