"""Behaviours that play trained policies or brains without learning: a step counter replaces the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import acting_policy, is_onnx, newest_policy
from headrace.queues.messages import Columns, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import ActingPolicy
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.report import TrainerReport
from headrace.startup_context import absolute, shown


class CountingStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Counts the steps and episodes of played trajectories, reports returns, and forwards the trajectories.

    Args:
        behavior: the behaviour name.
        report: called after each batch.
        begin: number of steps to start counting from.
        max_steps: number of steps after which the stage reports that it is done.
        rate: called with the results of finished games; yields (behaviour name, statistic, value) triples to record.
    """

    def __init__(
        self,
        behavior: str,
        report: Callable[[TrainerReport], None],
        begin: int = 0,
        max_steps: float = math.inf,
        rate: Callable[[Columns], Iterable[tuple[str, str, float]]] = lambda games: (),
    ) -> None:
        self._behavior = behavior
        self._report = report
        self._context = StageContext("counting")
        self._steps = begin
        self._max_steps = max_steps
        self._rate = rate
        self._returns: list[float] = []

    def start(self, context: StageContext) -> None:
        """Store the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Count a batch's steps and episodes, report the totals, and yield the batch."""
        self._steps += item.num_rows
        if item.episodes:
            returns = item.episodes["episode_returns"].tolist()
            self._returns = [*self._returns, *returns][-100:]
            statistics = self._context.statistics
            statistics.extend(self._behavior, "Environment/Cumulative Reward", returns, "histogram")
            lengths = item.episodes["episode_lengths"].tolist()
            statistics.extend(self._behavior, "Environment/Episode Length", lengths, "mean")
        for named, statistic, value in self._rate(item.games):
            self._context.statistics.add(named, statistic, value)
        recent = float(np.mean(self._returns)) if self._returns else None
        done = self._steps >= self._max_steps
        self._report(TrainerReport(self._behavior, self._steps, 0, done, recent, len(self._returns), {}))
        yield item


def policy_maker(config: RunConfig, run_folder: Path, device: str = "cpu") -> Callable[[BehaviorSpec], ActingPolicy]:
    """Return a function that makes acting policies.

    With `--inference`, each policy comes from the file that `policy_file` returns.
    """

    @preparing()  # this includes importing modules that a design names, such as a custom network
    def make(spec: BehaviorSpec) -> ActingPolicy:
        if config.checkpoint_settings.inference:
            return make_inference_policy(config, run_folder, spec, device)
        return make_policy(acting_design(config, spec), device)

    return make


def acting_design(config: RunConfig, spec: BehaviorSpec) -> PolicyDesign:
    """Return the design of a policy that explores. Its first steps are random if its trainer requires this."""
    settings = config.behavior_settings(spec.name)
    design, values = design_of(spec, settings, config.source_folder), settings.hyperparameters
    # A custom trainer derived from SAC gets its hyperparameters as a plain YAML mapping.
    steps = values.get("random_steps", 0) if isinstance(values, Mapping) else getattr(values, "random_steps", 0)
    return replace(design, random_steps=steps if design.squashed and isinstance(steps, int) else 0, explores=True)


def plays_given_models(config: RunConfig) -> bool:
    """Return True if `--inference` needs no run, because every listed behaviour's `init_path` is an `.onnx` file."""
    init_paths = [settings.init_path or "" for settings in config.behaviors.values()]
    return config.checkpoint_settings.inference and bool(init_paths) and all(map(is_onnx, init_paths))


def policy_file(config: RunConfig, run_folder: Path, behavior: str) -> Path:
    """Return the file to play: `init_path` if it is an `.onnx` file, else the run's newest `.pt` or `.onnx` policy.

    Raises:
        RunError: if there is no file.
    """
    init_path = config.behavior_settings(behavior).init_path
    if init_path is not None and is_onnx(init_path):
        beside = None if config.source_folder is None else config.source_folder / init_path
        path = beside if beside is not None and beside.is_file() else absolute(init_path)
        if not path.is_file():
            raise RunError(f"behaviors.{behavior}.init_path: there is no file {shown(path)}")
        return path
    return newest_policy(run_folder, behavior)


def make_inference_policy(config: RunConfig, run_folder: Path, spec: BehaviorSpec, device: str = "cpu") -> ActingPolicy:
    """Return the policy that an actor uses to play a behaviour, from the file that `policy_file` returns.

    Raises:
        RunError: if there is no file.
        StageError: if the policy does not fit the environment.
    """
    design = replace(design_of(spec, config.behavior_settings(spec.name), config.source_folder), explores=True)
    return acting_policy(policy_file(config, run_folder, spec.name), design, device)
