"""Several games of one engine, or its editor, as one environment group. Each game is stepped independently.

No game waits for another: a tick holds the agents of the games that have answered. If a game breaks, only that game
restarts. The others continue, as they do after a game has closed normally, until the last one closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.engines.errors import GameEnded
from headrace.stages.environments.engines.game import Game, GameAnswer, merged_statistics
from headrace.stages.environments.engines.rows import IndexedRows, agent_steps, decision_rows
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StepResult
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from headrace.stages.restarts import RestartBudget

log = logging.getLogger(__name__)

RUN_LOGS = "run_logs"
"""Subfolder of a run's folder for games' own logs."""
_LAST_STEP_S = 1.0
"""Seconds to wait for a step to finish once the run is ending."""
_END_S = 10.0
"""Seconds to wait for a game to exit before it is killed."""
_HUNG_S = 3.0
"""Seconds to wait for a game to exit if it is in the middle of a step and may be hanging. Kept short, because this
process might otherwise be killed first."""


class GameGroup:
    """A group of games, which all start at the first reset.

    Args:
        make: makes a game, given its number in the group and the environment parameters (None if there are none).
        num_envs: number of games.
        restarts: makes a game's restart limits.
        editor: True for an engine's editor, which its user starts and stops.
        on_close: the reaction to a game that closes normally, see `env_settings.on_close`.
        in_step: True if each tick waits for all games, so runs are reproducible.
        clock: returns the time in seconds, for the restart limits.
    """

    has_deadlines = True

    def __init__(
        self,
        make: Callable[[int, EpisodeParameters | None], Game],
        num_envs: int,
        restarts: Callable[[], RestartBudget],
        editor: bool = False,
        on_close: str = "end",
        in_step: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_envs = num_envs
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self._make = make
        self._parameters: EpisodeParameters | None = None
        self._games: list[Game] = []
        self._announced_by: dict[str, str] = {}
        self._budgets = [restarts() for _ in range(num_envs)]
        self._editor = editor
        self._on_close = on_close
        self._closed: dict[int, asyncio.Task[None]] = {}
        """Per game that has closed normally and will not restart: the task that waits for its exit."""
        self._restarted: list[int] = []
        self._just_closed: list[int] = []
        """The games that restarted, and the games that closed for good, since the last tick."""
        self._in_step = in_step
        self._clock = clock
        self._exchanges: dict[asyncio.Task[GameAnswer], int] = {}
        """Game of each pending exchange. A later `step` or `reset` awaits the exchange, or `close` cancels it."""
        self._stopped_waiting: asyncio.Future[None] | None = None
        """Done once the group stops waiting for steps in progress."""
        self._decisions: dict[int, dict[str, slice]] = {}
        """Per game that waits for actions: its slices of the last tick's decisions, keyed by behaviour id."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Send the parameters to all games, at their start and after each change."""
        self._parameters = parameters

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all agents of all games.

        The seed has no effect: games accept a seed only at their start, where each game gets the run's seed + its
        number.

        Raises:
            StageError: if a game can't be used, or broke too often.
            EnvironmentEnded: if the last game has closed normally.
        """
        if self._stopped_waiting is None:
            self._stopped_waiting = asyncio.get_running_loop().create_future()
        if not self._games:
            self._games = [self._make(index, self._parameters) for index in range(self.num_envs)]
        while self._exchanges:  # games accept a reset only while they wait for actions
            await self._gather(everyone=True)
        self._decisions = {}
        for index, game in enumerate(self._games):
            if index not in self._closed:
                self._send(index, game.reset() if game.connected else game.begin())
        answers: dict[int, GameAnswer] = {}
        while self._exchanges:
            answers |= await self._gather(everyone=True)
        self._restarted, self._just_closed = [], [*self._closed]  # all others restart their episodes
        return self._result(dict(sorted(answers.items())))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Send actions to the games that need them, and wait until at least one has answered.

        After a cancelled step, only `close` may be called.

        Raises:
            StageError: if a game broke too often.
            EnvironmentEnded: if the last game has closed normally.
        """
        waiting, self._decisions = self._decisions, {}
        for index, waiting_rows in waiting.items():
            self._send(index, self._games[index].step(_those_at(actions, waiting_rows)))
        return self._result(await self._gather(everyone=self._in_step))

    def request_stop(self) -> None:
        """End the group normally if its current steps take too long, because the run is ending."""
        if self._stopped_waiting is not None:
            asyncio.get_running_loop().call_later(_LAST_STEP_S, self._stop_waiting)

    async def close(self) -> None:
        """Close all connections immediately, in any state; closing twice is allowed."""
        stepping = {self._exchanges[task] for task in self._exchanges if not task.done()}
        tasks, self._exchanges = [*self._exchanges], {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                log.debug("an exchange in progress failed: %s", task.exception())
        if self._closed:
            await asyncio.wait(self._closed.values())
        async with asyncio.TaskGroup() as closing:
            for index, game in enumerate(self._games):
                closing.create_task(_end(game, _HUNG_S if index in stepping else _END_S))

    def _stop_waiting(self) -> None:
        if self._stopped_waiting is not None and not self._stopped_waiting.done():
            self._stopped_waiting.set_result(None)

    def _send(self, index: int, exchange: Any) -> None:
        self._exchanges[asyncio.create_task(exchange)] = index

    async def _gather(self, everyone: bool) -> dict[int, GameAnswer]:
        """Wait for at least one answer, or for all if `everyone` is True; return the answers, keyed by game.

        Raises:
            EnvironmentEnded: if the last game has closed, or the run is ending and a game hangs.
            StageError: if a game can't be used, or broke too often.
        """
        done = await self._some_done(everyone)
        answers: dict[int, GameAnswer] = {}
        # `done` is a set, whose order varies between runs, and the answers' order becomes the order of the rows: a
        # deterministic run needs the same rows each time.
        for task in sorted(done, key=lambda task: self._exchanges[task]):
            index = self._exchanges[task]
            error = task.exception()
            if error is None:
                del self._exchanges[task]
                answers[index] = task.result()
            elif isinstance(error, BrokenEnvironmentError | GameEnded):
                del self._exchanges[task]
                if isinstance(error, GameEnded):
                    self._on_closed(index, error)
                else:
                    self._restart(index, error)
            else:
                raise error
        return answers

    # A tick takes the first answers, so a slow game does not hold up the others (docs/decisions/052).
    async def _some_done(self, everyone: bool) -> set[asyncio.Task[GameAnswer]]:
        """Wait until at least one exchange is done, or until all are.

        Raises:
            EnvironmentEnded: if the run is ending and a game hangs.
        """
        assert self._stopped_waiting is not None, "reset comes first"
        waiting: set[Any] = {*self._exchanges, self._stopped_waiting}
        done: set[Any] = set()
        while len(waiting) > 1 and (everyone or not done):
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped_waiting in finished:
                names = [self._games[self._exchanges[task]].label for task in waiting]
                raise EnvironmentEnded(
                    f"{', '.join(names) or 'a game'} had not finished its step when the run had to end"
                )
            done |= finished
        return done

    # Only the broken game restarts: restarting the actor would cost all of its games (docs/decisions/053).
    def _restart(self, index: int, error: Exception) -> None:
        """Restart a game.

        Raises:
            StageError: if the restart limits do not allow it.
        """
        game, budget = self._games[index], self._budgets[index]
        if self._editor and not game.connected:
            raise StageError(str(error)) from error
        refusal = budget.refusal(self._clock())
        if refusal is not None:
            again = f"\nIt is not restarted again: {refusal}." if budget.count else ""
            raise StageError(f"{error}{again}") from error
        budget.spend(self._clock())
        others = "; the others continue" if self._others_play(index) else ""
        log.warning("%s\nRestarting %s (restart %d)%s.", error, game.label, budget.count, others)
        self._restarted.append(index)
        self._send(index, game.begin())

    # A game that quits normally has not failed, so its agents' steps are kept (docs/decisions/054).
    def _on_closed(self, index: int, end: GameEnded) -> None:
        """Handle a game that has closed normally: restart it if configured, otherwise continue with the others.

        Raises:
            EnvironmentEnded: if no other game is left.
        """
        game, budget = self._games[index], self._budgets[index]
        refusal = None
        if self._on_close == "restart":
            refusal = None if self._editor else budget.refusal(self._clock())  # the user starts the Editor
            if refusal is None:
                budget.spend(self._clock())
                again = "waiting for its next start" if self._editor else f"restarting it (restart {budget.count})"
                log.info("%s: %s, because env_settings.on_close is restart.", end, again)
                self._restarted.append(index)
                self._send(index, game.begin())
                return
        why = f"{end}" if refusal is None else f"{end}, and is not restarted again: {refusal}"
        self._closed[index] = asyncio.create_task(_end(game, _END_S))
        if not self._others_play(index):
            raise EnvironmentEnded(why)
        log.info("%s. The others continue.", why)
        self._just_closed.append(index)

    def _others_play(self, index: int) -> bool:
        return any(other not in self._closed for other in range(self.num_envs) if other != index)

    def _result(self, answers: Mapping[int, GameAnswer]) -> StepResult:
        lost, self._restarted = self._restarted, []
        gone, self._just_closed = self._just_closed, []
        self._announce(answers)
        parts: dict[str, list[IndexedRows]] = {}
        for behavior_id in self.behavior_specs:
            rows = [
                (index, answer.rows[behavior_id]) for index, answer in answers.items() if behavior_id in answer.rows
            ]
            if rows:
                parts[behavior_id] = rows
        rows_of_games = decision_rows(parts)
        for index, answer in answers.items():
            if answer.asks_for_decisions:
                self._decisions[index] = rows_of_games[index]
            else:  # no agent needs a decision
                self._send(index, self._games[index].step({}))
        return StepResult(
            {behavior_id: agent_steps(rows, self.behavior_specs[behavior_id]) for behavior_id, rows in parts.items()},
            statistics=merged_statistics(answer.statistics for answer in answers.values()),
            behavior_statistics={
                name: merged_statistics(answer.behavior_statistics.get(name, {}) for answer in answers.values())
                for name in {name: None for answer in answers.values() for name in answer.behavior_statistics}
            },
            lost=np.array(lost, np.int32) if lost else None,
            closed=np.array(gone, np.int32) if gone else None,
        )

    def _announce(self, indices: Iterable[int]) -> None:
        """Add the behaviours that these games announced.

        Raises:
            StageError: if two games have different behaviours under one id.
        """
        for index in indices:
            game = self._games[index]
            for behavior_id, spec in game.specs.items():
                first = self._specs.get(behavior_id)
                if first is None:
                    self._specs[behavior_id] = spec
                    self._announced_by[behavior_id] = game.label
                elif first is not spec and first != spec:
                    raise StageError(
                        f"{game.label}: behaviour {behavior_id!r} has {spec.seen} and {spec.actions}, but "
                        f"{self._announced_by[behavior_id]} has {first.seen} and {first.actions}; all games in a "
                        "run must be builds of the same scene"
                    )


async def _end(game: Game, patience_s: float) -> None:
    """Close a game; a failure is only logged, because it must not leave the other games open."""
    try:
        await game.close(patience_s)
    except Exception as error:
        log.debug("%s: closing it failed: %s", game.label, error)


def _those_at(actions: Mapping[str, ActionBatch], rows_by_id: Mapping[str, slice]) -> dict[str, ActionBatch]:
    return {
        behavior_id: ActionBatch(actions[behavior_id].continuous[rows], actions[behavior_id].discrete[rows])
        for behavior_id, rows in rows_by_id.items()
    }


def make_game_group(
    config: RunConfig,
    num_envs: int,
    kind: type[Game],
    make: Callable[[int, EpisodeParameters | None], Game],
) -> GameGroup:
    """Make the group that `env_settings` describes. No game starts before the group's first reset.

    Args:
        config: the run's configuration.
        num_envs: number of games.
        kind: the class of the games.
        make: as in `GameGroup`.
    """
    env = config.env_settings
    editor = env.env_path is None
    return GameGroup(
        make,
        num_envs,
        lambda: RestartBudget(env.max_lifetime_restarts, env.restarts_rate_limit_n, env.restarts_rate_limit_period_s),
        editor=editor,
        on_close="restart" if editor and kind.waits_for_restart else env.on_close,
        in_step=config.pipeline.deterministic,
    )
