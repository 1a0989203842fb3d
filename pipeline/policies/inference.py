"""Behaviours that play without learning, with trained policies or brains: a counting stage replaces the trainer."""

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
from headrace.surroundings import absolute, shown


class CountingStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Counts the steps and episodes of played trajectories, reports returns, and forwards the trajectories.

    Args:
        behavior: the behaviour name.
        report: called after each batch.
        begin: number of steps already counted.
        max_steps: steps after which it reports that it is done.
        rate: called with results of games, if any; returns (behaviour name, statistic, value) for each.
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
        """Count a batch."""
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
    """Return the factory of acting policies; in a run that does not learn, they may be models from the run's folder."""

    @preparing()  # including modules that a design names, such as a custom network
    def make(spec: BehaviorSpec) -> ActingPolicy:
        if config.checkpoint_settings.inference:
            return make_inference_policy(config, run_folder, spec, device)
        return make_policy(acting_design(config, spec), device)

    return make


def acting_design(config: RunConfig, spec: BehaviorSpec) -> PolicyDesign:
    """Return the design of a policy that acts while it trains: first at random, if its trainer requires that."""
    settings = config.behavior_settings(spec.name)
    design, values = design_of(spec, settings, config.source_folder), settings.hyperparameters
    # A trainer derived from SAC has hyperparameters as plain YAML data.
    steps = values.get("random_steps", 0) if isinstance(values, Mapping) else getattr(values, "random_steps", 0)
    return replace(design, random_steps=steps if design.squashed and isinstance(steps, int) else 0, explores=True)


def plays_given_models(config: RunConfig) -> bool:
    """Return True if no run is needed: `--inference` with an `.onnx` file as each listed behaviour's `init_path`."""
    init_paths = [settings.init_path or "" for settings in config.behaviors.values()]
    return config.checkpoint_settings.inference and bool(init_paths) and all(map(is_onnx, init_paths))


def policy_file(config: RunConfig, run_folder: Path, behavior: str) -> Path:
    """Return the file to play: the `.onnx` file of `init_path`, else the run's newest policy of either kind.

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
    """Return the policy that plays a behaviour in an actor, from the file that `policy_file` names.

    Raises:
        RunError: if there is no file.
        StageError: if it does not fit the environment.
    """
    design = replace(design_of(spec, config.behavior_settings(spec.name), config.source_folder), explores=True)
    return acting_policy(policy_file(config, run_folder, spec.name), design, device)
