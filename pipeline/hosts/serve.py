"""Runs a host from its plan: the one entry for hosts within main's process and in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.hosts.plan import HostPlan, HostRole
from headrace.pipeline.hosts.protocol import HostEdges
from headrace.pipeline.hosts.runtime import Host, describe_failure
from headrace.stages.errors import is_failure
from headrace.stages.loading import load_attribute

ROLES: dict[HostRole, str] = {
    "actor": "headrace.pipeline.hosts.actor:ActorHost",
    "replay": "headrace.pipeline.hosts.replay:ReplayHost",
    "learner": "headrace.pipeline.hosts.learner:LearnerHost",
    "follower": "headrace.pipeline.hosts.follower:FollowerHost",
    "replay_shard": "headrace.pipeline.hosts.replay_shard:ReplayShardHost",
    "inference": "headrace.pipeline.hosts.inference:InferenceHost",
    "evaluation": "headrace.pipeline.hosts.evaluation:EvaluationHost",
    "exhibition": "headrace.pipeline.hosts.exhibition:ExhibitionHost",
}
"""The classes of hosts; one is loaded in the host alone: a learner needs no environment library, an actor no torch."""


def build_host(plan: HostPlan, control: ControlEnd, edges: HostEdges) -> Host:
    """Make the host of a plan's role."""
    made: Host = load_attribute(plan.host_class or ROLES[plan.role], None, "host")(plan, control, edges)
    return made


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
