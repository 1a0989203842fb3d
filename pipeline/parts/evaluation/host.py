"""The evaluation host: plays published policies deterministically in its own environments, and saves the best one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from headrace.pipeline.common.lessons import final_parameters
from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.control.messages import Evaluated, OpenEdge, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.parts.evaluation.best_scores import write_score
from headrace.pipeline.policies.brains import lone_brain
from headrace.pipeline.policies.export import export_policy, read_export
from headrace.pipeline.policies.inference import policy_maker
from headrace.pipeline.policies.onnx_export import OnnxExporter
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.ends import Inlet
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import EnvironmentEnded, StageError
from headrace.stages.evaluation import EvaluationResult, EvaluationStage
from headrace.stages.evaluation.opponents import make_opponents
from headrace.stages.loop import NoOutlet, StageFailure, StageRunner
from headrace.stages.policy.design import design_of

NAME = "evaluation"
LAST_SHARE = 0.75
"""Fraction of `grace_s` available for playing the last policies after training has ended."""

log = logging.getLogger(__name__)


class EvaluationHost(Host):
    """Runs the evaluation stage for all behaviours."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._policies = WaitingPolicies(self._begin_end)
        self._limit = asyncio.timeout(None)
        self._onnx = OnnxExporter(self.stages.context(NAME).log)

    async def _work(self) -> None:
        settings, config = self.config.evaluation, self.config
        assert settings is not None, "there is no evaluation host without it"
        parameters = EpisodeParameters()
        # Always the last lessons, so that scores are comparable and the best policy is the best at the final task.
        parameters.receive(final_parameters(config.environment_parameters))
        request = EnvironmentRequest(config, self.plan.seed, config.pipeline.hosts.actors.replicas, self.plan.folder)
        stage = EvaluationStage(
            lambda: _connected(make_group(request), parameters),
            policy_maker(config, self.plan.folder),
            make_opponents(config, self),
            every=settings.every,
            episodes=settings.episodes,
            report=self._report,
            best=self.plan.best,
            before_reset=parameters.reseed,
            brain_of=partial(lone_brain, config, self.plan.seed),
        )
        sink: Any = NoOutlet()
        runner = StageRunner(stage, self._policies, sink, self.stages.context(NAME), self.stages.hooks(NAME))
        try:
            async with self._limit:
                await runner.run()
        except StageFailure as failure:
            if isinstance(failure.cause, EnvironmentEnded):
                raise StageError(f"its environments have closed: {failure.cause}") from failure
            raise
        except TimeoutError:
            log.warning(
                "Evaluation: the last policies have no score, because their games had not ended %.0f s after the end "
                "of training. Reduce evaluation.episodes to save time.",
                self._last_s,
            )

    async def _listen(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = []
            async for message in self.control.receive():
                if isinstance(message, Stop):
                    break
                if isinstance(message, OpenEdge):
                    following.append(tasks.create_task(self._policies.follow(await self.open_inlet(message))))
            for task in following:
                task.cancel()

    @property
    def _last_s(self) -> float:
        return LAST_SHARE * self.config.pipeline.supervision.grace_s

    def _begin_end(self) -> None:
        if self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._last_s)

    def _report(self, result: EvaluationResult) -> bool:
        """Report a score to main, and write the best policy; return False if it could not be written."""
        kept = not result.best or self._export(result.policy, result.spec, "best", result.mean)
        self.control.send(
            Evaluated(
                result.spec.name,
                result.policy.step,
                result.mean,
                result.deviation,
                result.lowest,
                result.highest,
                result.length,
                result.episodes,
                result.best and kept,
                result.shortest,
                result.longest,
            )
        )
        return kept

    @preparing()  # importing the packages that write and run `.onnx` files is slow
    def _export(self, policy: PolicyUpdate, spec: BehaviorSpec, label: str, mean: float | None = None) -> bool:
        """Write a policy, and the mean return of the best one; return False if a disk error prevented it."""
        settings, source_folder = self.config.behavior_settings(spec.name), self.config.source_folder
        try:
            self.stages.folder.check()
            path = export_policy(self.plan.folder, policy, spec, settings, label=label, source_folder=source_folder)
            if mean is not None:
                self._onnx.write(path, design_of(spec, settings, source_folder), policy)
                assert self.config.evaluation is not None, "there is no evaluation host without it"
                write_score(path, spec.name, mean, self.config.evaluation.opponents)
        except OSError as error:
            log.warning("Evaluation: the %s policy of %s could not be written: %s", label, spec.name, error)
            return False
        return True

    # Storage for fixed opponents. ----------------------------------------------------------------------------------

    def read(self, behavior: str) -> PolicyUpdate | None:
        """Return the policy that plays a behaviour's opponents in all its evaluations; None if there is none."""
        folder = behavior_folder(self.plan.folder, behavior)
        path = folder / f"{folder.name}-opponent.pt"
        if not path.is_file():
            return None
        try:
            return read_export(path).update
        except (OSError, ValueError) as error:
            log.warning("Evaluation: %s; the behaviour's newest policy plays instead.", error)
            return None

    def keep(self, policy: PolicyUpdate, spec: BehaviorSpec) -> None:
        """Store a policy as the fixed opponent for later evaluations."""
        self._export(policy, spec, "opponent")


def _connected(group: EnvironmentGroup, parameters: EpisodeParameters) -> EnvironmentGroup:
    connect_parameters(group, parameters)
    return group


# The evaluation stage's input queue: each behaviour's newest policy that waits to be evaluated.


class WaitingPolicies:
    """Merges the policy queues of all behaviours, longest-waiting policy first; queues can be added during iteration.

    Iteration ends when all queues have ended and no policy waits.

    Args:
        on_end: called when the last queue has ended, possibly long before the last policy is taken.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._on_end = on_end
        self._waiting: dict[str, PolicyUpdate] = {}
        self._changed = asyncio.Event()
        self._open = 0
        self._ended = False

    async def follow(self, inlet: Inlet[PolicyUpdate]) -> None:
        """Take policies from one queue until it ends."""
        self._open += 1
        try:
            async for policy in inlet:
                self._waiting[policy.behavior_id] = policy.copy()  # replaces a policy that is still waiting
                del policy  # its slab is released with the last reference
                self._changed.set()
        finally:
            inlet.close()
            self._open -= 1
            if not self._open:
                self._ended = True
                self._on_end()
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[PolicyUpdate]:
        """Yield policies until all queues have ended."""
        while True:
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Do nothing: the owner cancels the tasks that read the queues."""
