"""When an actor resets its environments, and with which seeds.

Environments are reset at the start of the run, for a lesson that requires it, when another team begins to learn, at
each checkpoint of a deterministic run, and after they break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.parameters import EnvironmentParameters
from headrace.stages.environments.stage import EnvironmentStage
from headrace.stages.errors import BrokenEnvironmentError, StageError
from headrace.stages.restarts import RestartBudget
from headrace.stages.stage import StageContext

_LESSON, _TURN = 1, 2
"""Codes for the two reasons for a reset during play: a lesson that requires a reset, and a new team's turn.

The reset's seed depends on the code.
"""


class Resets:
    """Resets an actor's environments, and rebuilds them when they break.

    Args:
        environment: the environment stage.
        processor: the agent processor, which drops the unfinished trajectories of broken environments.
        restarts: the limits on rebuilding a broken environment.
        resumed_at: number of the checkpoint that the run resumes from; -1 for a fresh run.
        clock: returns the time in seconds, for the restart limits.
    """

    def __init__(
        self,
        environment: EnvironmentStage,
        processor: AgentProcessor,
        restarts: RestartBudget,
        resumed_at: int,
        clock: Callable[[], float],
    ) -> None:
        self._environment = environment
        self._processor = processor
        self._restarts = restarts
        self._resumed_at = resumed_at
        self._clock = clock
        self._context = StageContext("actor")
        self._received: EnvironmentParameters | None = None
        self._stretch: tuple[int, ...] = (resumed_at,)
        self._reset_to: tuple[int, ...] = ()
        self._played_turn = 0
        """Number of the turn in which the current games began; 0 before the first turn."""

    def start(self, context: StageContext) -> None:
        """Store the context, and pass any parameters received so far to the environments."""
        self._context = context
        self.adopt_parameters()

    def receive_parameters(self, parameters: EnvironmentParameters) -> None:
        """Store parameters until they are adopted. If earlier parameters required a reset, that reset remains due."""
        if self._received is not None and self._received.reset:
            parameters = replace(parameters, reset=True)
        self._received = parameters

    def adopt_parameters(self) -> bool:
        """Pass the newest parameters to the environments; return True if these parameters require a reset."""
        newest, self._received = self._received, None
        if newest is not None:
            self._environment.parameters.receive(newest)
        return newest is not None and newest.reset

    def due(self) -> bool:
        """Return True if the environments must be reset now. This adopts new parameters, which may require a reset."""
        if self.adopt_parameters():
            self._reset_to = (*self._stretch, self._environment.parameters.generation, _LESSON)
            return True
        mappings = self._environment.mappings
        if self._played_turn and self._played_turn != mappings.turns:
            self._reset_to = (*self._stretch, mappings.current.generation, _TURN)
            return True
        self._played_turn = mappings.turns  # no game of an earlier turn is running
        return False

    def reach_checkpoint(self, number: int) -> None:
        """Record that the next stretch of the run begins at this checkpoint."""
        self._stretch = (number,)

    async def begin_stretch(self) -> None:
        """Reset the environments as at the start of the run, or as at the last checkpoint."""
        await self._begin_anew(self._stretch)

    async def make(self) -> None:
        """Perform the reset that is due for a lesson or a turn, with a seed that no restart uses."""
        try:
            await self._begin_anew(self._reset_to)
        except BrokenEnvironmentError as error:
            await self.recover(error)

    async def recover(self, error: BrokenEnvironmentError) -> None:
        """Rebuild the environments, retrying until a rebuild succeeds or the restart limits are reached.

        Raises:
            StageError: if the limits forbid another restart.
        """
        failure: BrokenEnvironmentError | None = error
        while failure is not None:
            refusal = self._restarts.refusal(self._clock())
            if refusal is not None:
                again = f". It is not restarted again: {refusal}." if self._restarts.count else ""
                raise StageError(f"{failure}{again}", key=failure.key) from failure
            self._restarts.spend(self._clock())
            dropped = self._processor.drop_environments(np.arange(self._environment.num_envs))
            self._context.log.warning(
                "%s. Restarting it (restart %d); %d steps of incomplete trajectories are lost.",
                failure,
                self._restarts.count,
                dropped,
            )
            try:
                stretch = (self._resumed_at, self._restarts.count)
                await self._environment.restart(self._seed(*stretch), stretch)
                failure = None
            except BrokenEnvironmentError as again:
                failure = again

    async def _begin_anew(self, stretch: tuple[int, ...]) -> None:
        await self._environment.reset(self._seed(*stretch), stretch)
        self._played_turn = self._environment.mappings.turns

    def _seed(self, *path: int) -> int:
        """Return a seed that is unique to a stretch between two checkpoints, a reset within it, or a restart."""
        entropy = [self._context.seed, *(part + 1 for part in path)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
