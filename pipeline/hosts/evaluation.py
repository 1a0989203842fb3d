"""The evaluation host: plays published policies deterministically on environments of its own, and keeps the best."""

from __future__ import annotations

import asyncio
from typing import Any

from pipeline.common.lessons import final_parameters
from pipeline.control.channel import ControlEnd
from pipeline.control.messages import Evaluated, OpenEdge
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.hosts.runtime import Host
from pipeline.policies.export import export_policy
from pipeline.policies.inference import policy_maker
from pipeline.policies.onnx_export import OnnxExporter
from queues.ends import Inlet
from queues.messages import PolicyUpdate
from stages.environment.factory import EnvironmentRequest, make_group
from stages.environment.parameters import EpisodeParameters, connect_parameters
from stages.environment.protocol import EnvironmentGroup
from stages.evaluation import EvaluationResult, EvaluationStage
from stages.loop import Nowhere, StageRunner
from stages.policy.design import design_of


class EvaluationHost(Host):
    """Runs one evaluation stage per behaviour id."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._inlets = asyncio.Queue[Inlet[PolicyUpdate]](maxsize=64)  # one per behaviour id
        self._onnx = OnnxExporter(self.stages.context("evaluation").log)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            going: set[asyncio.Task[None]] = set()
            joining = tasks.create_task(self._inlets.get())
            while True:
                done, _ = await asyncio.wait({joining, *going}, return_when=asyncio.FIRST_COMPLETED)
                going -= done
                if joining in done:  # behaviour ids come one by one, some when others are long being evaluated
                    going.add(tasks.create_task(self._evaluate(joining.result())))
                    joining = tasks.create_task(self._inlets.get())
                elif not going:
                    break
            joining.cancel()

    async def _evaluate(self, inlet: Inlet[PolicyUpdate]) -> None:
        config = self.config
        settings = config.evaluation
        assert settings is not None, "there is no evaluation host without it"
        behavior_id = inlet.name.partition("/")[2]
        parameters = EpisodeParameters()
        # Always those of the last lessons: scores mean the same all along, and the best is the best at what is wanted.
        parameters.receive(final_parameters(self.config.environment_parameters))
        request = EnvironmentRequest(config, self.plan.seed, config.pipeline.hosts.actors.replicas)
        stage = EvaluationStage(
            behavior_id,
            lambda: _told(make_group(request), parameters),
            policy_maker(self.config, self.plan.folder),
            every=settings.every,
            episodes=settings.episodes,
            report=self._report,
            best=self.checkpoint.progress.get("best", {}).get(behavior_id) if self.checkpoint else None,
            before_reset=parameters.reseed,
        )
        name = f"evaluation-{behavior_id}"
        sink: Any = Nowhere()
        await StageRunner(stage, inlet, sink, self.stages.context(name), self.stages.hooks(name)).run()

    def _report(self, evaluation: EvaluationResult) -> None:
        policy = evaluation.policy
        if evaluation.best:
            settings = self.config.behavior_settings(evaluation.spec.name)
            path = export_policy(
                self.plan.folder,
                policy,
                evaluation.spec,
                settings,
                label="best",
                source_folder=self.config.source_folder,
            )
            design = design_of(evaluation.spec, settings, self.config.source_folder)
            self._onnx.write(path, design, policy)
        self.control.send(
            Evaluated(
                evaluation.spec.behavior_id,
                policy.step,
                evaluation.mean,
                evaluation.deviation,
                evaluation.episodes,
                evaluation.best,
            )
        )

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, OpenEdge):
                self._inlets.put_nowait(await self.open_inlet(message))


def _told(group: EnvironmentGroup, parameters: EpisodeParameters) -> EnvironmentGroup:
    connect_parameters(group, parameters)
    return group
