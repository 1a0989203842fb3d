"""Runs a host from its plan: the one entry for hosts within main's process and in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.control.channel import ControlEnd
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.hosts.runtime import Host, describe_failure
from stages.errors import is_failure


def build_host(plan: HostPlan, control: ControlEnd, edges: HostEdges) -> Host:
    """Make the host of a plan's role."""
    # Imported here: a learner needs no environment library, an actor no torch.
    if plan.role == "actor":
        from pipeline.hosts.actor import ActorHost

        return ActorHost(plan, control, edges)
    if plan.role == "replay":
        from pipeline.hosts.replay import ReplayHost

        return ReplayHost(plan, control, edges)
    if plan.role == "learner":
        from pipeline.hosts.learner import LearnerHost

        return LearnerHost(plan, control, edges)
    if plan.role == "follower":
        from pipeline.hosts.follower import FollowerHost

        return FollowerHost(plan, control, edges)
    if plan.role == "replay_shard":
        from pipeline.hosts.replay_shard import ReplayShardHost

        return ReplayShardHost(plan, control, edges)
    from pipeline.hosts.evaluation import EvaluationHost

    return EvaluationHost(plan, control, edges)


async def serve(
    plan: HostPlan,
    control: ControlEnd,
    edges: HostEdges,
    build: Callable[[HostPlan, ControlEnd, HostEdges], Host] = build_host,
) -> bool:
    """Be this host until it has nothing left to do; main receives a message about every way to end.

    Returns:
        True if it ended well.
    """
    try:
        host = build(plan, control, edges)
    except BaseException as error:
        if not is_failure(error):
            raise
        control.send(describe_failure(plan.name, error))
        await control.drain()
        control.close()
        return False
    try:
        return await host.run()
    finally:
        await control.drain()
        control.close()
