"""Replay shards in main: their hosts, and the queues that connect them to a learner."""

from __future__ import annotations

from headrace.pipeline.common.graph import shard_names
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState, carry
from headrace.pipeline.main.run_part import RunPart
from headrace.pipeline.roles.stages import Runner


class ReplayShards(RunPart):
    """Starts each learner's replay shards."""

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """Start the hosts of a behaviour's replay shards; return the runners that main needs for them."""
        runners, behavior, launcher = [], state.behavior, self.run.launcher
        for shard, name in enumerate(shard_names(self.run.plan.config, behavior)):
            host = await launcher.start(
                "replay_shard", name, behavior=behavior, spec=state.spec.to_plain(), replica=shard
            )
            rows, samples = f"rows/{behavior}/{shard}", f"samples/{behavior}/{shard}"
            for queue, giver, taker in ((rows, learner, host), (samples, host, learner)):
                receiver = launcher.ends[f"{queue} in"] = await giver.receiver(queue, newest=False)
                sender = launcher.ends[f"{queue} out"] = await taker.sender(queue)
                runners.append(carry(receiver, sender))
        return runners
