"""Several programs of one engine, or its editor, as one environment group. Each program is stepped independently.

No program waits for another: a tick holds the agents of the programs that have answered. If a program breaks, only that
program restarts. The others continue, as they do after a program has closed normally, until the last one closes.
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
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.errors import ProgramEnded
from headrace.stages.environments.programs.program import Program, ProgramAnswer, merged_statistics
from headrace.stages.environments.programs.rows import IndexedRows, agent_steps, decision_rows
from headrace.stages.environments.protocol import StepResult
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from headrace.stages.restarts import RestartBudget

log = logging.getLogger(__name__)

RUN_LOGS = "run_logs"
"""Subfolder of a run's folder for programs' own logs."""
_LAST_STEP_S = 1.0
"""Seconds to wait for a step to finish once the run is ending."""
_END_S = 10.0
"""Seconds to wait for a program to exit before it is killed."""
_HUNG_S = 3.0
"""Seconds to wait for a program to exit if it is in the middle of a step and may be hanging. Kept short, because this
process might otherwise be killed first."""


class ProgramGroup:
    """A group of programs, which all start at the first reset.

    Args:
        make: makes an instance, given its number in the group and the environment parameters (None if there are none).
        num_envs: number of instances.
        restarts: makes an instance's restart limits.
        editor: True for an engine's editor, which its user starts and stops.
        on_close: the reaction to an instance that closes normally, see `env_settings.on_close`.
        in_step: True if each tick waits for all instances, so runs are reproducible.
        clock: returns the time in seconds, for the restart limits.
    """

    has_deadlines = True

    def __init__(
        self,
        make: Callable[[int, EpisodeParameters | None], Program[Any]],
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
        self._instances: list[Program[Any]] = []
        self._announced_by: dict[str, str] = {}
        self._budgets = [restarts() for _ in range(num_envs)]
        self._editor = editor
        self._on_close = on_close
        self._closed: dict[int, asyncio.Task[None]] = {}
        """Per instance that has closed normally and will not restart: the task that waits for its program's exit."""
        self._lost: list[int] = []
        self._gone: list[int] = []
        """The instances that were restarted (`_lost`) and that closed for good (`_gone`) since the last tick."""
        self._in_step = in_step
        self._clock = clock
        self._under_way: dict[asyncio.Task[ProgramAnswer], int] = {}
        """Instance of each pending exchange. A later `step` or `reset` awaits the exchange, or `close` cancels it."""
        self._given_up: asyncio.Future[None] | None = None
        """Done once the group stops waiting for steps in progress."""
        self._asked: dict[int, dict[str, slice]] = {}
        """Per instance that waits for actions: its slices of the last tick's decisions, keyed by behaviour id."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Send the parameters to all instances, at their start and after each change."""
        self._parameters = parameters

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all agents of all instances.

        The seed has no effect: programs accept a seed only at their start, where each program gets the run's seed + its
        number.

        Raises:
            StageError: if an instance can't be used, or broke too often.
            EnvironmentEnded: if the last instance has closed normally.
        """
        if self._given_up is None:
            self._given_up = asyncio.get_running_loop().create_future()
        if not self._instances:
            self._instances = [self._make(index, self._parameters) for index in range(self.num_envs)]
        while self._under_way:  # programs accept a reset only while they wait for actions
            await self._gather(everyone=True)
        self._asked = {}
        for index, instance in enumerate(self._instances):
            if index not in self._closed:
                self._send(index, instance.reset() if instance.connected else instance.begin())
        answers: dict[int, ProgramAnswer] = {}
        while self._under_way:
            answers |= await self._gather(everyone=True)
        self._lost, self._gone = [], [*self._closed]  # all others restart their episodes
        return self._result(dict(sorted(answers.items())))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Send actions to the instances that need them, and wait until at least one has answered.

        After a cancelled step, only `close` may be called.

        Raises:
            StageError: if an instance broke too often.
            EnvironmentEnded: if the last instance has closed normally.
        """
        asked, self._asked = self._asked, {}
        for index, places in asked.items():
            self._send(index, self._instances[index].step(_those_at(actions, places)))
        return self._result(await self._gather(everyone=self._in_step))

    def request_stop(self) -> None:
        """End the group normally if its current steps take too long, because the run is ending."""
        if self._given_up is not None:
            asyncio.get_running_loop().call_later(_LAST_STEP_S, self._give_up)

    async def close(self) -> None:
        """Close all connections immediately, in any state; closing twice is allowed."""
        stepping = {self._under_way[task] for task in self._under_way if not task.done()}
        tasks, self._under_way = [*self._under_way], {}
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
            for index, instance in enumerate(self._instances):
                closing.create_task(instance.close(_HUNG_S if index in stepping else _END_S))

    def _give_up(self) -> None:
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(None)

    def _send(self, index: int, exchange: Any) -> None:
        self._under_way[asyncio.create_task(exchange)] = index

    async def _gather(self, everyone: bool) -> dict[int, ProgramAnswer]:
        """Wait for at least one answer, or for all if `everyone` is True; return the answers, keyed by instance.

        Raises:
            EnvironmentEnded: if the last instance has closed, or the run is ending and an instance hangs.
            StageError: if an instance can't be used, or broke too often.
        """
        done = await self._some_done(everyone)
        answers: dict[int, ProgramAnswer] = {}
        for task in sorted(done, key=lambda task: self._under_way[task]):
            index = self._under_way[task]
            error = task.exception()
            if error is None:
                del self._under_way[task]
                answers[index] = task.result()
            elif isinstance(error, BrokenEnvironmentError | ProgramEnded):
                del self._under_way[task]
                if isinstance(error, ProgramEnded):
                    self._on_closed(index, error)
                else:
                    self._restart(index, error)
            else:
                raise error
        return answers

    # A tick takes the first answers, so a slow program does not hold up the others (docs/decisions/052).
    async def _some_done(self, everyone: bool) -> set[asyncio.Task[ProgramAnswer]]:
        """Wait until at least one exchange is done, or until all are.

        Raises:
            EnvironmentEnded: if the run is ending and an instance hangs.
        """
        assert self._given_up is not None, "reset comes first"
        waiting: set[Any] = {*self._under_way, self._given_up}
        done: set[Any] = set()
        while len(waiting) > 1 and (everyone or not done):
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._given_up in finished:
                names = [self._instances[self._under_way[task]].name for task in waiting]
                raise EnvironmentEnded(
                    f"{', '.join(names) or 'a program'} had not finished its step when the run had to end"
                )
            done |= finished
        return done

    # Only the broken program restarts: restarting the actor would cost all of its programs (docs/decisions/053).
    def _restart(self, index: int, error: Exception) -> None:
        """Restart an instance.

        Raises:
            StageError: if the restart limits do not allow it.
        """
        instance, budget = self._instances[index], self._budgets[index]
        if self._editor and not instance.connected:
            raise StageError(str(error)) from error
        refusal = budget.refusal(self._clock())
        if refusal is not None:
            again = f"\nIt is not restarted again: {refusal}." if budget.count else ""
            raise StageError(f"{error}{again}") from error
        budget.spend(self._clock())
        others = "; the others continue" if self._others_play(index) else ""
        log.warning("%s\nRestarting %s (restart %d)%s.", error, instance.name, budget.count, others)
        self._lost.append(index)
        self._send(index, instance.begin())

    # A program that quits normally has not failed, so its agents' steps are kept (docs/decisions/054).
    def _on_closed(self, index: int, end: ProgramEnded) -> None:
        """Handle an instance that has closed normally: restart it if configured, otherwise continue with the others.

        Raises:
            EnvironmentEnded: if no other instance is left.
        """
        instance, budget = self._instances[index], self._budgets[index]
        refusal = None
        if self._on_close == "restart":
            refusal = None if self._editor else budget.refusal(self._clock())  # the user starts the Editor
            if refusal is None:
                budget.spend(self._clock())
                again = "waiting for its next start" if self._editor else f"restarting it (restart {budget.count})"
                log.info("%s: %s, because env_settings.on_close is restart.", end, again)
                self._lost.append(index)
                self._send(index, instance.begin())
                return
        why = f"{end}" if refusal is None else f"{end}, and is not restarted again: {refusal}"
        self._closed[index] = asyncio.create_task(instance.close(_END_S))
        if not self._others_play(index):
            raise EnvironmentEnded(why)
        log.info("%s. The others continue.", why)
        self._gone.append(index)

    def _others_play(self, index: int) -> bool:
        return any(other not in self._closed for other in range(self.num_envs) if other != index)

    def _result(self, answers: Mapping[int, ProgramAnswer]) -> StepResult:
        lost, self._lost = self._lost, []
        gone, self._gone = self._gone, []
        self._announce(answers)
        parts: dict[str, list[IndexedRows]] = {}
        for behavior_id in self.behavior_specs:
            found = [(index, a.rows[behavior_id]) for index, a in answers.items() if behavior_id in a.rows]
            if found:
                parts[behavior_id] = found
        places = decision_rows(parts)
        for index, answer in answers.items():
            if answer.asks_for_decisions:
                self._asked[index] = places[index]
            else:  # no agent needs a decision
                self._send(index, self._instances[index].step({}))
        return StepResult(
            {behavior_id: agent_steps(found, self.behavior_specs[behavior_id]) for behavior_id, found in parts.items()},
            statistics=merged_statistics(answer.statistics for answer in answers.values()),
            behavior_statistics={
                name: merged_statistics(answer.behavior_statistics.get(name, {}) for answer in answers.values())
                for name in {name: None for answer in answers.values() for name in answer.behavior_statistics}
            },
            lost=np.array(lost, np.int32) if lost else None,
            closed=np.array(gone, np.int32) if gone else None,
        )

    def _announce(self, indices: Iterable[int]) -> None:
        """Add the behaviours that these instances announced.

        Raises:
            StageError: if two instances have different behaviours under one id.
        """
        for index in indices:
            instance = self._instances[index]
            for behavior_id, spec in instance.specs.items():
                known = self._specs.get(behavior_id)
                if known is None:
                    self._specs[behavior_id] = spec
                    self._announced_by[behavior_id] = instance.name
                elif known is not spec and known != spec:
                    raise StageError(
                        f"{instance.name}: behaviour {behavior_id!r} has {spec.seen} and {spec.actions}, but "
                        f"{self._announced_by[behavior_id]} has {known.seen} and {known.actions}; all programs in a "
                        "run must be builds of the same scene"
                    )


def _those_at(actions: Mapping[str, ActionBatch], places: Mapping[str, slice]) -> dict[str, ActionBatch]:
    return {
        behavior_id: ActionBatch(actions[behavior_id].continuous[place], actions[behavior_id].discrete[place])
        for behavior_id, place in places.items()
    }


def make_program_group(
    config: RunConfig,
    num_envs: int,
    make: Callable[[int, EpisodeParameters | None], Program[Any]],
    waits_for_restart: bool,
) -> ProgramGroup:
    """Make the group that `env_settings` describes. No program starts before the group's first reset.

    Args:
        config: the run's configuration.
        num_envs: number of instances.
        make: as in `ProgramGroup`.
        waits_for_restart: True if a run continues once the user has restarted the engine's editor.
    """
    env = config.env_settings
    editor = env.env_path is None
    return ProgramGroup(
        make,
        num_envs,
        lambda: RestartBudget(env.max_lifetime_restarts, env.restarts_rate_limit_n, env.restarts_rate_limit_period_s),
        editor=editor,
        on_close="restart" if editor and waits_for_restart else env.on_close,
        in_step=config.pipeline.deterministic,
    )
