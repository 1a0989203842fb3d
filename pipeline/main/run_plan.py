"""A run's immutable plan: its configuration, its folder and the checkpoint from which it resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.paths import file_name
from headrace.pipeline.common.graph import Route, expected_parts, offline_demonstrations, route, students_of, teacher_of
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.policies.ml_agents import left_checkpoint
from headrace.pipeline.run_folder.checkpoint import Checkpoint
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.stages.replay import TRAINER_EDGE, recorded_behaviors, recorded_edge


@dataclass(frozen=True)
class RunPlan:
    """The immutable plan of one run."""

    config: RunConfig
    folder: RunFolder
    """The run's folder."""
    seed: int
    resumed: Checkpoint | None
    """The checkpoint that the run resumes from or whose policies it plays; None for a new run."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Steps of the ML-Agents checkpoints that behaviours resume from, keyed by folder name."""

    @cached_property
    def playing(self) -> bool:
        """True if the run only plays policies and neither learns nor saves."""
        return self.config.checkpoint_settings.inference

    @cached_property
    def deterministic(self) -> bool:
        """True if the run must be reproducible bit for bit."""
        return self.config.pipeline.deterministic

    @cached_property
    def replaces_learners(self) -> bool:
        """True if lost learners restart. False if they run in main, or their input can't resume at an arbitrary point.

        A recording would continue after the steps that the lost learner had received, and a deterministic run is
        reproducible only if it is resumed as a whole.
        """
        kind = HOST_KINDS[self.config.pipeline.hosts.learners.kind]
        return not (kind.in_main or self.deterministic or self.replay_edge)

    @cached_property
    def replay_edge(self) -> str:
        """The edge at which the streams that replace the actors were recorded; empty if the run steps environments.

        Demonstrations go straight to the trainers.
        """
        if self.config.replay is not None:
            return recorded_edge(self.config.replay.streams)
        return TRAINER_EDGE if offline_demonstrations(self.config) else ""

    @cached_property
    def _recorded_at_trainers(self) -> frozenset[str]:
        if self.config.replay is None or self.replay_edge != TRAINER_EDGE:
            return frozenset()
        return recorded_behaviors(self.config.replay.streams, TRAINER_EDGE)

    @property
    def elapsed_before_s(self) -> float:
        """Seconds of training before this run, up to the checkpoint from which the run continues."""
        return (
            float(self.resumed.progress.get("elapsed_s", 0.0)) if self.resumed is not None and not self.playing else 0.0
        )

    @property
    def resumes(self) -> bool:
        """True if the run continues an earlier run and keeps that run's files."""
        return not self.playing and (self.resumed is not None or bool(self.left))

    def step_before(self, behavior: str) -> int:
        """Return the step from which a behaviour's training continues."""
        if not self.resumes:
            return 0
        steps = self.resumed.steps if self.resumed is not None else {}
        return steps.get(behavior, self.left.get(file_name(behavior), 0))

    def origin(self, behavior: str) -> Path | None:
        """Return the path from which a behaviour's training resumes; None if it starts from scratch."""
        if self.resumed is not None and behavior in self.resumed.steps:
            return self.resumed.folder
        return left_checkpoint(self.folder.path, behavior) if file_name(behavior) in self.left else None

    def ratings_left(self) -> dict[str, float]:
        """Return ML-Agents' ratings for the behaviours that resume from its checkpoints."""
        if not self.left:
            return {}
        behaviors = self.folder.read_training_status().behaviors.items()
        return {name: one.elo for name, one in behaviors if one.elo is not None and file_name(name) in self.left}

    def route(self, behavior: str) -> Route:
        """Return the route for a behaviour's trajectories; recorded trainer input goes straight to the trainer."""
        way = route(self.config, behavior)
        return way.straight(bool(self.students(behavior))) if self.replay_edge == TRAINER_EDGE else way

    def teacher(self, behavior: str) -> str | None:
        """Return the behaviour whose trajectories main must copy to this behaviour's trainer; None if there is none.

        If an imitator's input is replayed, the recording already contains these trajectories.
        """
        return None if behavior in self._recorded_at_trainers else teacher_of(self.config, behavior)

    def students(self, behavior: str) -> list[str]:
        """Return the behaviours whose trainers must receive copies of this behaviour's trajectories from main."""
        return [name for name in students_of(self.config, behavior) if name not in self._recorded_at_trainers]

    def set_by_command(self, behavior: str) -> tuple[str, ...]:
        """Return the names of the behaviour's scheduled hyperparameters that were set on the command line."""
        values = self.config.behavior_settings(behavior).declared_hyperparameters
        names, at = values.scheduled() if values is not None else (), ("behaviors", behavior, "hyperparameters")
        return tuple(name for name in names if self.config.is_set_by_command((*at, name)))

    def expected_parts(self, behaviors: Iterable[str]) -> set[str]:
        """Return the names of all parts that make up a complete checkpoint of these behaviours."""
        return expected_parts(self.config, behaviors, trainers_only=self.replay_edge == TRAINER_EDGE)

    def host_plan(self, role: str, name: str) -> HostPlan:
        """Return a host's plan with the fields that all hosts have in common."""
        return HostPlan(
            role=role,
            name=name,
            config=self.config.to_plain(),
            config_path=str(self.config.path) if self.config.path is not None else None,
            run_folder=str(self.folder.path),
            run_id=self.folder.path.name,
            seed=self.seed,
            resume=self.resumed is not None and not self.playing,
            resumed_at=self.resumed.number if self.resumed is not None else -1,
        )
