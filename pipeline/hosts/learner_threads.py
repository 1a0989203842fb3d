"""The threads that a learner computes with, as the YAML and the machine have it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.graph import actor_names
from headrace.pipeline.common.threads import usable_cores
from headrace.pipeline.hosts.child_process import learners_of, most_learner_processes
from headrace.stages.trainer.thread_choice import ThreadChoice, candidates_for


def thread_choice(config: RunConfig, behavior: str, device: str, log: logging.Logger) -> ThreadChoice | None:
    """Return what sets a learner's threads; None where it computes with as many as its process is set to.

    Args:
        config: the run's.
        behavior: the behaviour that it learns.
        device: the torch device that it learns on.
        log: is told what was chosen, and by which durations.
    """
    learners = config.pipeline.hosts.learners
    if learners.threads != "auto":
        return ThreadChoice([learners.threads], _use)
    # Sums depend on the number of threads in their last digits, and a replay is to give what was recorded.
    exact = config.pipeline.deterministic or config.record is not None or config.replay is not None
    if exact or learners.kind != "process" or learners.replicas > 1 or not device.startswith("cpu"):
        return None
    candidates = candidates_for(cores_left_for(config))
    if len(candidates) == 1:
        return None

    def tell(threads: int, took: Mapping[int, float]) -> None:
        tried = ", ".join(f"{number} {seconds:.3g} s" for number, seconds in took.items())
        log.info("%s: learners.threads auto is %d: an update takes, by threads, %s.", behavior, threads, tried)

    return ThreadChoice(candidates, _use, tell)


def cores_left_for(config: RunConfig) -> int:
    """Return how many cores a learner may use that neither actors nor other learners need."""
    hosts = config.pipeline.hosts
    actors = 0 if HOST_KINDS[hosts.actors.kind].on_ray else len(actor_names(config))
    learners = min(len(learners_of(config)) or 1, most_learner_processes(config))
    return max(1, (usable_cores() - actors) // learners)


def _use(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
