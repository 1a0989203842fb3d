"""The follower host: a replica of a learner's trainer, which receives the same items and learns with it.

A follower sends no reports, policies or checkpoints; the learner does.
"""

from __future__ import annotations

from typing import Any

from headrace.pipeline.common.daemon_threads import in_thread
from headrace.pipeline.common.graph import TRAINER
from headrace.pipeline.control.messages import FollowerReady, OpenEdge
from headrace.pipeline.parts.followers.learner import Followers, device_of_replica, is_loss, own_address
from headrace.pipeline.roles.device import device_of
from headrace.pipeline.roles.training import TrainerHost
from headrace.stages.loop import NoOutlet, StageRunner
from headrace.stages.stage import NoStatistics


class FollowerHost(TrainerHost):
    """Runs one replica of a trainer."""

    async def _work(self) -> None:
        try:
            await self._follow()
        except Exception as error:
            if not is_loss(error):  # the learner determines which replica is lost
                raise

    async def _follow(self) -> None:
        from headrace.stages.trainer.joined_replicas import JoinedReplicas, connect

        (address, port), rank = self.plan.rendezvous, self.plan.replica
        here = own_address(address, port)
        size = self.config.pipeline.hosts.learners.replicas
        device, own = device_of_replica(device_of(self.config, self.plan.behavior)[0], rank, size)
        self.control.send(FollowerReady())
        # No time limit is needed, because a follower ends with its learner.
        replicas = await in_thread(
            "joining", lambda: JoinedReplicas(rank, size, connect(address, port, size), own, here)
        )
        nowhere: Any = NoOutlet()
        if self._shards is not None:
            for _ in range(self._shards.count):  # only the learner sends rows to shards and requests batches
                self._shards.outlets.put_nowait(nowhere)
        async with self._make_stage(replicas, device, NoStatistics()) as stage:
            Followers.check_agreement(replicas, stage.trainer)
            stage.policy()
            await StageRunner(stage, await self._inlet, nowhere, self.stages.context(TRAINER)).run()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, OpenEdge) and message.name.startswith("samples/"):
                self._shards.inlets.put_nowait(await self.open_inlet(message))
            elif isinstance(message, OpenEdge):
                self._inlet.set_result(await self.open_inlet(message))
