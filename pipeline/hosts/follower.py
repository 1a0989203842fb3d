"""The follower's host: a replica of a learner's trainer, which takes in what the learner does and learns with it.

It tells nobody anything: reports, policies and checkpoints are the learner's.
"""

from __future__ import annotations

from typing import Any

from pipeline.common.graph import TRAINER
from pipeline.control.messages import FollowerReady, OpenEdge
from pipeline.hosts.device import choose_device
from pipeline.hosts.followers import check_agreement, device_of_replica, in_thread, own_address
from pipeline.hosts.training import TrainerHost
from stages.loop import Nowhere, StageRunner
from stages.stage import NoStatistics


class FollowerHost(TrainerHost):
    """Runs one replica of a trainer."""

    async def _work(self) -> None:
        from stages.trainer.joined_replicas import JoinedReplicas, connect

        (address, port), rank = self.plan.rendezvous, self.plan.replica
        here = own_address(address, port)
        size = self.config.pipeline.hosts.learners.replicas
        device, own = device_of_replica(choose_device(self.config.torch_settings.device)[0], rank, size)
        self.control.send(FollowerReady())
        # Without a limit of its own: it ends with the learner, which decides who is lost.
        replicas = await in_thread(lambda: JoinedReplicas(rank, size, connect(address, port, size), own, here))
        stage = self._make_stage(replicas, device, NoStatistics())
        check_agreement(replicas, stage.trainer, device)
        stage.policy()
        nowhere: Any = Nowhere()
        await StageRunner(stage, await self._inlet, nowhere, self.stages.context(TRAINER)).run()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, OpenEdge):
                self._inlet.set_result(await self.open_inlet(message))
