"""A run's state for its page, collected in main's event loop about once a second: plain data for JSON.

The state includes the pipeline: hosts with their stages, and the queues between them with their fill levels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from headrace.config import RunConfig
from headrace.pipeline.common.graph import (
    INFERENCE,
    MAIN,
    TRAINER,
    decides_centrally,
    learner_name,
    placements_after,
    route,
    shard_name,
)
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.reporting.bottleneck import Bottleneck
from headrace.pipeline.reporting.progress import ProgressSnapshot, QueueProgress
from headrace.pipeline.reporting.time_shares import ACTORS, WAIT
from headrace.queues.specs import behavior_name, behavior_team

ENVIRONMENT, PROCESSOR, PUBLISHER = "environment", "agent_processor", "policy_publisher"
RELAY = "requests"
"""Name of main's stage that forwards decision requests to the inference host."""

CREDITS = "credits"
"""Kind of the edges for credits. They are not queues: they lead from learners to actors and show outstanding credits.
"""
_WAITS_AT = {
    TRAINER: ("trajectories", "learn", CREDITS),
    PUBLISHER: ("updates", "policies", CREDITS),
    INFERENCE: ("requests", "asked", "answered", "answers"),
}
"""Kinds of edges on which others wait for a stage, keyed by each stage that may limit a run's speed. Actors' stages are
not listed.
"""
_NEVER_FULL = frozenset({"policies", "updates", "asked", "answers"})
"""Kinds of queues that hold at most one item: the newest, or the only one."""


class StagePlace(NamedTuple):
    """Identifies a stage by its host and name."""

    host: str
    stage: str


@dataclass(frozen=True)
class Edge:
    """A queue between two stages; if a queue connects several hosts, one host's part of that queue."""

    queue: str
    kind: str
    behavior: str
    source: StagePlace
    target: StagePlace


def host_of(handle: HostHandle, config: RunConfig) -> dict[str, Any]:
    """Describe a host for the page."""
    plan = handle.plan
    return {
        "name": plan.name,
        "role": plan.role,
        "kind": _kind(plan.role, config),
        "behavior": plan.behavior,
        "pid": getattr(handle, "pid", None),
        "stages": [*_stages(plan.role, config)],
    }


def main_host(config: RunConfig, behaviors: Iterable[str], pid: int) -> dict[str, Any]:
    """Describe the main process, which is a host too, for the page."""
    stages = [*dict.fromkeys(stage for behavior in behaviors for stage in _of_main(config, behavior))]
    relay = [RELAY] if decides_centrally(config) else []
    named = {"name": MAIN, "role": MAIN, "kind": "main", "behavior": "", "pid": pid}
    return {**named, "stages": [*stages, PUBLISHER, *relay]}


def edges(config: RunConfig, hosts: Sequence[HostHandle], queues: Iterable[QueueProgress]) -> list[dict[str, Any]]:
    """Describe the queues between hosts, from the reports on their ends."""
    ends: dict[str, dict[str, QueueProgress]] = {}
    for end in queues:
        queue, _, host = end.name.rpartition(" (")
        ends.setdefault(queue, {})[host.rstrip(")")] = end
    actors = [host.plan.name for host in hosts if host.plan.role in ("actor", "replay")]
    named = [*actors, *([INFERENCE] if decides_centrally(config) else [])]
    found = (edge for queue, at in ends.items() for edge in _wired(config, queue, [n for n in named if n in at]))
    return [_measured(edge, ends[edge.queue]) for edge in found]


def windows(coordinator: Coordinator, shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Describe the credit windows, as edges from learners to actors."""
    ledger, found = coordinator.flow.ledger, []
    actors = [host.plan.name for host in coordinator.running.all() if host.plan.role == "actor"]
    for name in coordinator.starter.behaviors:
        size, queue, trainer = ledger.size(name), f"{CREDITS}/{name}", StagePlace(learner_name(name), TRAINER)
        for actor in actors if size else ():
            edge = Edge(queue, CREDITS, name, trainer, StagePlace(actor, ENVIRONMENT))
            wait = shares.get(f"{WAIT}/policy {name}", 0.0)
            out = min(size, ledger.outstanding(name))  # a tick is never split, so there may be a few more
            end = QueueProgress(queue, out, size, size, 0.0, wait)
            found.append(_measured(edge, {"": end}))
    return found


def _held(edge: Mapping[str, Any], cause: Bottleneck | None) -> float:
    """Return the fraction of time that an edge spends waiting for the bottleneck; 0 if the edge does not lead to it."""
    if cause is None or not cause.host or cause.behavior not in ("", edge["behavior"]):
        return 0.0
    kinds = ("trajectories", "learn") if cause.host == ACTORS else _WAITS_AT.get(cause.stage, ("trajectories", CREDITS))
    return round(cause.wait, 3) if edge["kind"] in kinds else 0.0


def _measured(edge: Edge, at: dict[str, QueueProgress]) -> dict[str, Any]:
    """Merge the reports on a queue's two ends; either may be missing, and a queue inside one host has only one."""
    giver, taker = at.get(edge.source.host), at.get(edge.target.host)
    ends = [end for end in (giver, taker) if end is not None] or [*at.values()]
    return {
        "queue": edge.queue,
        "kind": edge.kind,
        "behavior": edge.behavior,
        "source": edge.source,
        "target": edge.target,
        "depth": max(end.depth for end in ends),
        "capacity": max(end.bound for end in ends),
        "high_water": max(end.high_water for end in ends),
        "put_wait": round(max(end.producers_wait for end in ends), 3),
        "get_wait": round(max(end.consumers_wait for end in ends), 3),
        "rate": round((giver or ends[0]).items_per_s, 2),
        "newest": edge.kind in _NEVER_FULL,
    }


def _wired(config: RunConfig, queue: str, actors: Sequence[str]) -> list[Edge]:
    """Return the edges for the queue with this name; empty if the queue connects no stages."""
    kind, _, what = queue.partition("/")
    publisher, trainer = StagePlace(MAIN, PUBLISHER), StagePlace(learner_name(what), TRAINER)
    match kind:
        case "trajectories":
            target, last = _entry(config, what), _stages("actor" if config.replay is None else "replay", config)[-1]
            return [Edge(queue, kind, what, StagePlace(actor, last), target) for actor in actors]
        case "learn":
            *_, source = (PUBLISHER, *_of_main(config, what))
            return [Edge(queue, kind, what, StagePlace(MAIN, source), trainer)]
        case "updates":
            return [Edge(queue, kind, what, trainer, publisher)]
        case "policies":
            name = behavior_name(what)
            takers = (StagePlace(host, INFERENCE if host == INFERENCE else ENVIRONMENT) for host in actors)
            return [Edge(queue, kind, name, publisher, taker) for taker in takers]
        case "requests" | "answers" | "asked" | "answered":
            actor, relay = StagePlace(what, ENVIRONMENT), StagePlace(MAIN, RELAY)
            decider = StagePlace(INFERENCE, INFERENCE)
            ways = {"requests": (actor, relay), "asked": (relay, decider), "answered": (decider, relay)}
            return [Edge(queue, kind, "", *ways.get(kind, (relay, actor)))]
        case "rows" | "samples":
            name, _, shard = what.rpartition("/")
            near = StagePlace(learner_name(name), TRAINER)
            far = StagePlace(shard_name(name, int(shard)), "replay_buffer")
            return [Edge(queue, kind, name, *((near, far) if kind == "rows" else (far, near)))]
    return []


def _entry(config: RunConfig, behavior: str) -> StagePlace:
    """Return the first stage that an actor's trajectories reach."""
    if stages := _of_main(config, behavior):
        return StagePlace(MAIN, stages[0])
    learns = config.behavior_settings(behavior).learns and not config.checkpoint_settings.inference
    through = route(config, behavior).through_main or not learns
    return StagePlace(MAIN, PUBLISHER) if through else StagePlace(learner_name(behavior), TRAINER)


def _of_main(config: RunConfig, behavior: str) -> tuple[str, ...]:
    """Return main's stages on the route for a behaviour's trajectories."""
    found = route(config, behavior)
    return (*found.before_ghost, *((found.shared,) if found.shared else ()), *found.after_ghost)


def _stages(role: str, config: RunConfig) -> tuple[str, ...]:
    match role:
        case "actor" | "replay":
            custom = tuple(each.name for each in placements_after(config, PROCESSOR, in_main=False))
            return (*((ENVIRONMENT, PROCESSOR) if role == "actor" else ("recording",)), *custom)
    return host_role(role).stages


def _kind(role: str, config: RunConfig) -> str:
    return str(getattr(config.pipeline.hosts, host_role(role).placed_as).kind)


Status = Literal["starting", "running", "paused", "ending", "failed", "ended"]


def state_of(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> dict[str, Any]:
    """Return a run's state.

    Args:
        plan: the run.
        coordinator: the run's coordinator in main.
        snapshot: the run's progress.
    """
    config, hosts = plan.config, coordinator.running.all()
    status, message = _status(coordinator)
    found = [*edges(config, hosts, snapshot.queues), *windows(coordinator, snapshot.shares)]
    described = [main_host(config, coordinator.starter.behaviors, os.getpid())]
    for host in hosts:
        name = host.plan.name
        known = {"ended": coordinator.running.has_ended(name), "told": coordinator.running.usage(name)}
        described.append({**host_of(host, config), **known})
    return {
        "status": status,
        "message": message,
        "time": round(time.time(), 1),
        "elapsed_s": round(snapshot.elapsed, 1),
        "seconds_left": snapshot.seconds_left,
        "checkpoint": coordinator.checkpointing.newest,
        "checkpoint_under_way": coordinator.checkpointing.busy,
        "behaviors": [*_behaviors(plan, coordinator, snapshot)],
        "players": _players(coordinator),
        "hosts": described,
        "edges": [{**edge, "held": _held(edge, snapshot.bottleneck)} for edge in found],
        "bottleneck": None if snapshot.bottleneck is None else asdict(snapshot.bottleneck),
    }


def leagues_of(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Return the leagues' reports."""
    return [*coordinator.starter.league_reports().values()]


def _status(coordinator: Coordinator) -> tuple[Status, str]:
    shutdown = coordinator.shutdown
    if shutdown.failure is not None:
        return "failed", f"{shutdown.failure.stage}: {shutdown.failure.message}"
    if shutdown.begun:
        return "ending", ""
    if coordinator.controls.paused:
        return "paused", ""
    return ("running" if any(state.ready for state in coordinator.starter.behaviors.values()) else "starting"), ""


def _behaviors(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> list[dict[str, Any]]:
    found = []
    for each in snapshot.behaviors:
        state = coordinator.starter.behaviors[each.name]
        found.append(
            {
                "name": each.name,
                "trainer": None if plan.playing else state.settings.trainer_type,
                "done": state.done,
                "learner": None if state.learner is None else learner_name(each.name),
                "step": each.steps,
                "max_steps": each.max_steps,
                "steps_per_s": round(each.steps_per_s, 1),
                "reward": each.mean_reward,
                "elo": state.elo,
                "lag": each.policy_lag,
                "policy_wait": round(snapshot.shares.get(f"{WAIT}/policy {each.name}", 0.0), 3),
                "updates": each.updates,
                "seconds_left": each.seconds_left,
                "next_checkpoint": state.next_checkpoint,
                "hyperparameters": coordinator.controls.hyperparameters(each.name),
            }
        )
    return found


def _players(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Return the current matchup in self-play: the learning team, and the opponents' snapshots."""
    self_play = coordinator.starter.self_play
    if self_play is None or not self_play.controller.generation:
        return []
    controller = self_play.controller
    found = []
    for history in controller.histories.values():
        snapshots = {
            behavior_id: n
            for behavior_id, n in controller.opponents.items()
            if behavior_name(behavior_id) == history.name
        }
        found += [
            {"behavior": history.name, "id": behavior_id, "team": behavior_team(behavior_id), "snapshot": number}
            for behavior_id, number in snapshots.items()
        ]
    return [{"learning_team": controller.learning_team, "generation": controller.generation, "opponents": found}]
