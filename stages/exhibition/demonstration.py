"""Demonstrations: streams of a person's play, for imitation learning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.queues.messages import ActionBatch, Array, StepBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.agent.processor import AgentProcessor
from headrace.stages.environments.protocol import AgentSteps

EDGE = "agent_processor"
"""The pipeline edge whose recordings have the same format as demonstrations."""
_LONGEST = 64
"""Maximum number of steps per trajectory. A killed process loses at most this many steps.

Readers join the parts of an episode.
"""


class Demonstration:
    """The steps of one agent that a person plays, written to a file as they happen.

    Args:
        path: the stream file, which must not exist.
        spec: the agent's behaviour.
        run_id: the run's id, for the header.
        config: the run's configuration as plain data, for the header.

    Raises:
        StreamError: if the file can't be created.
    """

    def __init__(self, path: Path, spec: BehaviorSpec, run_id: str, config: Mapping[str, Any]) -> None:
        # A demonstration holds one agent without teammates, and each action is what the person pressed at that step.
        self._spec = replace(spec, grouped=False, action_repeat=None)
        self._processor = AgentProcessor(lambda name: _LONGEST)
        # `squashed` states that actions have the form that the environment receives.
        header = StreamHeader.of(run_id, time.time(), (EDGE,), (self._spec,), config, squashed=[spec.name])
        self._writer = StreamWriter(path, header)
        self._tick = 0
        self.steps = 0
        """Number of decisions so far."""

    @property
    def path(self) -> Path:
        """Path of the stream file."""
        return self._writer.path

    def add(self, steps: AgentSteps, actions: ActionBatch, agent: int) -> None:
        """Add the agent's rows at a tick, and the action chosen for it.

        Args:
            steps: the rows of the agent's behaviour id.
            actions: the actions of all rows that need a decision.
            agent: the agent's id.

        Raises:
            StreamError: if the step can't be written to disk.
        """
        rows = np.flatnonzero(steps.agent_ids == agent)
        if not len(rows):
            return
        ended = int((rows < steps.ended).sum())
        deciding = rows[ended:] - steps.ended
        count, spec = len(deciding), self._spec.actions
        decisions: dict[str, Array] = {"log_probs": np.zeros((count, spec.log_prob_size), np.float32)}
        if spec.continuous_size:
            decisions["continuous_actions"] = actions.continuous[deciding]
        if spec.discrete_branches:
            decisions["discrete_actions"] = actions.discrete[deciding]
        if steps.action_masks is not None:
            decisions["action_masks"] = steps.action_masks[deciding]
        self._tick += 1
        self.steps += count
        step = StepBatch(
            behavior_id=self._spec.behavior_id,
            agent_ids=steps.agent_ids[rows],
            env_ids=steps.env_ids[rows],
            episode_ids=steps.episode_ids[rows],
            observations=tuple(observation[rows] for observation in steps.observations),
            rewards=steps.rewards[rows] if steps.group_rewards is None else (steps.rewards + steps.group_rewards)[rows],
            ended=ended,
            terminated=steps.terminated[rows[:ended]],
            truncated=steps.truncated[rows[:ended]],
            decisions=decisions,
            policy_versions=np.zeros(count, np.int64),
            generations=np.zeros(count, np.int32),
            learning=np.ones(count, np.bool_),
            opponents=np.full(count, -1, np.int32),
            tick=self._tick,
        )
        for batch in self._processor.process(step):
            self._writer.write(EDGE, batch, time.monotonic())

    def cut(self) -> None:
        """End the trajectory here, because another player makes the next steps."""
        for batch in self._processor.close_all():
            self._writer.write(EDGE, batch, time.monotonic())

    def close(self) -> None:
        """Write the remaining steps, and the index."""
        try:
            self.cut()
        finally:
            self._writer.close()
