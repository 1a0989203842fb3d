"""Behaviours that play trained policies or brains without learning: a step counter replaces the trainer.

This module also creates the brains that a configuration names, for behaviours and self-play opponents, including
trained models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.brains import BrainSettings, brains_of_team, fills
from headrace.config.errors import KeyPath
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import (
    acting_policy,
    beside,
    find_model,
    find_models,
    is_onnx,
    newest_policy,
    read_model,
)
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.brains import BrainRequest, BrainShare, PolicyWrapper, StandIn, check_brain, make_brain
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.report import TrainerReport
from headrace.stages.trainer_lookup import exploration_of
from headrace.startup_context import shown


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
    """Return the design of a policy that explores, in the way that its trainer requires.

    Raises:
        StageError: if the trainer has its own exploration, and the network settings ask for another.
    """
    settings = config.behavior_settings(spec.name)
    design, values = design_of(spec, settings, config.source_folder), settings.hyperparameters
    exploration = exploration_of(settings, config.source_folder, ("behaviors", spec.name))
    if exploration is not None and design.gsde is not None:
        raise StageError(
            f"behaviors.{spec.name}.network_settings.gsde can't be combined with {settings.trainer_type}, which "
            "explores in its own way; remove gsde",
            ("behaviors", spec.name, "network_settings", "gsde"),
        )
    design = replace(design, exploration=exploration, greedy=False)
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
        path = beside(init_path, config.source_folder)
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


def brain_maker(
    config: RunConfig, seed: int, person: Callable[[BehaviorSpec], ActingPolicy] | None = None
) -> Callable[[BehaviorSpec], Sequence[BrainShare]]:
    """Return a function that makes the brains for a behaviour id, each with the fraction of games that it plays.

    Args:
        config: the configuration, which names the brains.
        seed: seed for brains that draw their own random numbers.
        person: makes the brain that a human player controls by keyboard; None if no human can play.
    """

    @preparing()
    def make(spec: BehaviorSpec) -> Sequence[BrainShare]:
        settings = config.behavior_settings(spec.name)
        wanted = [*_requests(config, ("behaviors", spec.name), settings, spec, seed)]
        if not wanted and settings.learns:
            return ()
        mine = brains_of_team([brain for brain, _ in wanted], spec.team)
        if not settings.learns and not fills([brain.weight for brain in mine]):
            named = sorted({team for brain in settings.brain for team in brain.teams or ()})
            raise StageError(
                f"behaviors.{spec.name}.brain: no brain controls {spec.behavior_id}: the brains are only for teams "
                f"{', '.join(map(str, named))}; add a brain for team {spec.team}, or one without 'teams'",
                ("behaviors", spec.name, "brain"),
            )
        design = design_of(spec, settings, config.source_folder)
        return [
            BrainShare(brain.name, brain.weight, StandIn(make_brain(replace(request, person=person)), design))
            for brain, request in wanted
            if brain in mine
        ]

    return make


def check_brains(config: RunConfig) -> list[LoadError]:
    """Return the mistakes in brain settings that can be found without creating the brains."""
    mistakes = []
    for path, settings in config.blocks():
        for _, request in _requests(config, path, settings):
            mistakes += check_brain(request)
    return mistakes


def lone_brain(config: RunConfig, seed: int, spec: BehaviorSpec) -> ActingPolicy | None:
    """Return the brain that plays the largest fraction of a behaviour id's games.

    Returns None if a trainer's policy plays some of the games.
    """
    settings = config.behavior_settings(spec.name)
    mine = brains_of_team(settings.brain, spec.team)
    if not mine or not fills([brain.weight for brain in mine]):
        return None
    most = max(mine, key=lambda brain: brain.weight)
    requests = _requests(config, ("behaviors", spec.name), settings, spec, seed)
    return make_brain(next(request for brain, request in requests if brain is most))


def named_brains(config: RunConfig, seed: int, spec: BehaviorSpec) -> dict[str, BrainRequest]:
    """Return a request for each of a behaviour's brains, keyed by the brain's name in the configuration."""
    settings = config.behavior_settings(spec.name)
    listed = _requests(config, ("behaviors", spec.name), settings, spec, seed)
    return {brain.name: request for brain, request in listed}


def _requests(
    config: RunConfig, path: KeyPath, settings: BehaviorSettings, spec: BehaviorSpec | None = None, seed: int = 0
) -> Iterator[tuple[BrainSettings, BrainRequest]]:
    met = () if settings.self_play is None or config.checkpoint_settings.inference else settings.self_play.brains
    listed: list[tuple[KeyPath, BrainSettings]] = [
        *(((*path, "brain", index), brain) for index, brain in enumerate(settings.brain)),
        *(((*path, "self_play", "brains", index), brain) for index, brain in enumerate(met)),
    ]
    folder, game = config.source_folder, config.builtin_game
    for key, brain in listed:
        yield brain, BrainRequest(brain.use, brain.with_, (*key, "use"), (*key, "with"), folder, game, seed, spec)


class ModelBrain(PolicyWrapper):
    """A brain that acts with a trained policy.

    Args:
        policy: the loaded policy.
        deterministic: True to always take the policy's most likely actions.
    """

    def __init__(self, policy: ActingPolicy, deterministic: bool) -> None:
        super().__init__(policy)
        self._deterministic = deterministic

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Choose actions with the model; `deterministic` also applies if the brain is deterministic."""
        return self._policy.act(observations, masks, random, deterministic or self._deterministic, recall)


def make_model(request: BrainRequest) -> ModelBrain | None:
    """Return the brain for the model that a request names.

    If the request has no spec, only check that the model's file exists, and return None.

    Raises:
        LoadError: if the model is missing, or was made for other observations or actions.
    """
    spec = request.spec
    with blaming(*request.key):
        try:
            if spec is None:
                find_models(request.use, request.folder)
                return None
            file = find_model(request.use, spec.name, request.folder)
            policy = read_model(file, spec, request.folder).make_policy()
        except RunError as error:
            raise LoadError(f"{request.where}: {error}") from error
        return ModelBrain(policy, bool(request.given.get("deterministic", False)))
