"""Demonstrations by an expert that knows the answers, as a stream like those of real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from headrace.queues.messages import ActionBatch, Array, StepBatch, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult

Expert = Callable[[AgentSteps], ActionBatch]
EDGE = "trainer"


def record(group: EnvironmentGroup, expert: Expert, path: Path, steps: int, seed: int = 0) -> Path:
    """Write what an expert does in an environment, whose actions are those that the environment gets.

    Args:
        group: a group with one behaviour, whose `reset` and `step` are no coroutines.
        expert: what to do for the rows of a tick that ask for a decision.
        path: the stream file.
        steps: how many to record at least, over all instances; the trajectories that are open then are cut.
        seed: of the environment.
    """
    first = _result(group.reset(seed))
    ((behavior, spec),) = group.behavior_specs.items()
    config = {"behaviors": {behavior: {"trainer_type": "sac"}}}
    header = StreamHeader.of("expert", 0.0, (EDGE,), (spec,), config, squashed=[spec.name])  # actions as given
    with StreamWriter(path, header) as writer:
        for number, batch in enumerate(_batches(group, spec, expert, steps, first)):
            writer.write(EDGE, batch, float(number))
    return path


def _batches(
    group: EnvironmentGroup, spec: BehaviorSpec, expert: Expert, steps: int, result: StepResult
) -> Iterator[TrajectoryBatch]:
    processor = AgentProcessor({spec.name: steps + 1})
    taken = 0
    while True:
        rows = result.steps[spec.behavior_id]
        actions = expert(rows)
        yield from processor.process(_decided(spec, rows, actions))
        if taken >= steps:
            break
        taken += len(rows.agent_ids) - rows.ended
        result = _result(group.step({spec.behavior_id: actions}))
    yield from processor.finish()


def _decided(spec: BehaviorSpec, rows: AgentSteps, actions: ActionBatch) -> StepBatch:
    decisions: dict[str, Array] = {
        "log_probs": np.zeros((len(actions.continuous), spec.actions.log_prob_size), np.float32)
    }
    if spec.actions.continuous_size:
        decisions["continuous_actions"] = actions.continuous
    if spec.actions.discrete_branches:
        decisions["discrete_actions"] = actions.discrete
    if spec.actions.masked:
        decisions["action_masks"] = rows.action_masks
    d = len(actions.continuous)
    return StepBatch(
        spec.behavior_id,
        rows.agent_ids,
        rows.env_ids,
        rows.episode_ids,
        rows.observations,
        rows.rewards,
        rows.ended,
        rows.terminated,
        rows.truncated,
        decisions,
        policy_versions=np.zeros(d, np.int64),
        generations=np.zeros(d, np.int32),
        learning=np.ones(d, np.bool_),
        opponents=np.full(d, -1, np.int32),
    )


def _result(made: object) -> StepResult:
    assert isinstance(made, StepResult), "for environments that are stepped without waiting"
    return made
