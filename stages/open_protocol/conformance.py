"""A trainer that learns nothing: it tests a game of the open protocol, or lets it play on by random actions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queues.messages import ActionBatch
from queues.specs import BehaviorSpec
from stages.errors import StageError
from stages.open_protocol.announcement import Hello
from stages.open_protocol.columns import actions_part
from stages.open_protocol.states import read_state
from stages.open_protocol.worker import OpenWorker
from stages.programs.errors import MessageError
from stages.programs.rows import ProgramRows

_END_S = 5.0
"""Time in which a game should end after `close`."""
_SEED = 7


class _Shown:
    """What one behaviour's agents have shown."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self.decisions = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.rewarded = False
        self.changed = False
        self._running: dict[int, tuple[float, int]] = {}
        self._first: NDArray[Any] | None = None

    def add(self, rows: ProgramRows) -> None:
        """Count a state's rows."""
        for index, (agent, reward) in enumerate(zip(rows.ids.tolist(), rows.rewards.tolist(), strict=True)):
            total, length = self._running.pop(agent, (0.0, -1))
            if length >= 0:
                self.rewarded |= reward != 0
            if index < rows.ended:
                self.returns.append(total + reward)
                self.lengths.append(max(0, length) + 1)
            else:
                self._running[agent] = (total + reward if length >= 0 else 0.0, length + 1)
        self.decisions += len(rows) - rows.ended
        if len(rows) and not self.changed:
            whole = np.concatenate([each[-1].reshape(-1).astype(np.float64) for each in rows.observations])
            self.changed = self._first is not None and not np.array_equal(whole, self._first)
            self._first = whole if self._first is None else self._first

    def forget(self) -> None:
        """All agents begin anew."""
        self._running.clear()

    def words(self) -> str:
        """What was seen, in a line."""
        line = f"{self.spec.behavior_id}: {self.decisions:,} decisions, {len(self.returns):,} episodes"
        if self.returns:
            mean, length = np.mean(self.returns), np.mean(self.lengths)
            line += f" of {length:.1f} decisions, mean return {mean:.3f} at random"
        return line


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report."""

    kind: str
    """`ok`, `note` or `FAIL`."""
    text: str


class RandomTrainer:
    """Plays a game by random actions.

    Args:
        worker: its connection, not started yet.
        seed: of the actions.
    """

    def __init__(self, worker: OpenWorker, seed: int = 0) -> None:
        self.worker = worker
        self.seen: dict[str, _Shown] = {}
        self._random = np.random.default_rng(seed)
        self._asked: dict[str, ProgramRows] = {}

    async def start(self) -> Hello:
        """Connect."""
        hello = await self.worker.start()
        self.seen = {behavior_id: _Shown(spec) for behavior_id, spec in hello.specs.items()}
        return hello

    async def reset(self, parameters: Mapping[str, float], seed: int | None = None) -> dict[str, Any]:
        """Let all agents begin anew; returns the state."""
        for each in self.seen.values():
            each.forget()
        return await self._take(await self.worker.reset(parameters, seed))

    async def step(self, parameters: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Let the agents act that have asked; returns the next state."""
        parts = {}
        for behavior_id, rows in self._asked.items():
            if len(rows) > rows.ended:
                batch = _random_actions(self.seen[behavior_id].spec, rows, self._random)
                parts[behavior_id] = actions_part(rows.ids[rows.ended :], batch)
        return await self._take(await self.worker.step(parts, parameters))

    async def _take(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            specs = {behavior_id: seen.spec for behavior_id, seen in self.seen.items()}
            self._asked = dict(read_state(message, specs).rows)
        except MessageError as error:
            raise await self.worker.refuse(str(error)) from None
        for behavior_id, rows in self._asked.items():
            self.seen[behavior_id].add(rows)
        return message

    @property
    def asking(self) -> int:
        """How many agents ask for a decision."""
        return sum(len(rows) - rows.ended for rows in self._asked.values())


async def check_game(worker: OpenWorker, steps: int) -> AsyncIterator[Line]:
    """Test a game: hello, resets, steps by random actions, parameters, its end; yields a line for each.

    Args:
        worker: its connection, not started yet.
        steps: how many.
    """
    trainer = RandomTrainer(worker)
    try:
        hello = await trainer.start()
        for spec in hello.specs.values():
            yield Line("ok", f"announces {spec.behavior_id}: {spec.seen}; {spec.actions}")
        first = await trainer.reset({}, _SEED)
        yield Line("ok", f"answers a reset: {trainer.asking} agents ask for a decision")
        began = time.monotonic()
        for _ in range(steps):
            await trainer.step()
        yield Line("ok", f"answers {steps:,} steps, {steps / (time.monotonic() - began):,.0f} a second")
        for seen in trainer.seen.values():
            yield Line("ok", seen.words())
            for note in _notes(seen):
                yield Line("note", note)
        await trainer.step({"difficulty": 0.5})
        await trainer.step()
        yield Line("ok", "takes environment parameters between steps")
        again = await trainer.reset({"difficulty": 1.0}, _SEED)
        yield Line("ok", f"answers a second reset: {trainer.asking} agents ask for a decision")
        if _without_ids(first) != _without_ids(again):
            yield Line("note", "a reset with the same seed begins otherwise, so runs can't be repeated exactly")
        await trainer.step()
        began = time.monotonic()
        await worker.close(_END_S)
        if worker.pid is not None:
            took = time.monotonic() - began
            late = took >= _END_S
            yield Line("FAIL" if late else "ok", f"{'does not end' if late else 'ends'} within {_END_S:g} s of close")
    except StageError as error:
        yield Line("FAIL", str(error))
    finally:
        await worker.close(0)


def _notes(seen: _Shown) -> list[str]:
    name = seen.spec.behavior_id
    notes = []
    if not seen.decisions:
        notes.append(f"{name}: no agent has asked for a decision")
    if seen.decisions and not seen.returns:
        notes.append(f"{name}: no episode has ended, so nothing is known of returns; send 'ended'")
    if seen.decisions and not seen.rewarded:
        notes.append(f"{name}: all rewards were 0; nothing can be learned unless some are not")
    if seen.decisions and not seen.changed:
        notes.append(f"{name}: what its agents observe has never changed")
    return notes


def _without_ids(state: Mapping[str, Any]) -> Any:
    """What agents observe in a state."""
    return {
        behavior_id: part.get("deciding", {}).get("observations")
        for behavior_id, part in state.get("agents", {}).items()
    }


def _random_actions(spec: BehaviorSpec, rows: ProgramRows, random: np.random.Generator) -> ActionBatch:
    count, actions = len(rows) - rows.ended, spec.actions
    continuous = random.uniform(-1, 1, (count, actions.continuous_size)).astype(np.float32)
    discrete = np.zeros((count, len(actions.discrete_branches)), np.int32)
    begin = 0
    for branch, choices in enumerate(actions.discrete_branches):
        scores = random.random((count, choices))
        if rows.action_masks is not None:
            scores[~rows.action_masks[:, begin : begin + choices]] = -1
        discrete[:, branch] = scores.argmax(axis=1)
        begin += choices
    return ActionBatch(continuous, discrete)
