"""The state of a run for its page, gathered in main's event loop about once a second: plain data for JSON."""

from __future__ import annotations

import os
import time
from typing import Any, Literal

from headrace.pipeline.common.graph import learner_name
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.wiring import edges, host_of, main_host
from headrace.pipeline.reporting.progress import ProgressSnapshot
from headrace.queues.specs import behavior_name, behavior_team

Status = Literal["starting", "running", "paused", "ending", "failed", "ended"]


def state_of(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> dict[str, Any]:
    """Return the state of a run.

    Args:
        plan: the run.
        coordinator: its main.
        snapshot: its progress.
    """
    config, hosts = plan.config, coordinator.running.all()
    status, message = _status(coordinator)
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
        "edges": edges(config, hosts, snapshot.queues),
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
                "updates": each.updates,
                "seconds_left": each.seconds_left,
                "next_checkpoint": state.next_checkpoint,
                "hyperparameters": coordinator.controls.hyperparameters(each.name),
            }
        )
    return found


def _players(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Who plays whom: each behaviour id of self-play, whether it learns, and by which snapshot the others act."""
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
