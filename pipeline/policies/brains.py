"""The brains that a configuration names (of behaviours, in self-play, trained policies), and exhibitions' players."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.brains import BrainSettings, brains_of_team, fills, kind_of
from headrace.config.errors import KeyPath
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.policies.inference import policy_file, policy_maker
from headrace.pipeline.policies.model_files import find_model, find_models, read_model, read_policy_update
from headrace.pipeline.run_folder.folder import folder_name
from headrace.queues.messages import ActionBatch, Array, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import StandIn, check_brain, make_brain
from headrace.stages.brains.protocol import BrainRequest, BrainShare
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.evaluation.players import SEED, GreedyPlayer, Player
from headrace.stages.exhibition.cast import NEWEST
from headrace.stages.policy.design import design_of
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall


def brain_maker(
    config: RunConfig, seed: int, person: Callable[[BehaviorSpec], ActingPolicy] | None = None
) -> Callable[[BehaviorSpec], Sequence[BrainShare]]:
    """Return what makes the brains that decide for a behaviour id, with their shares of the games.

    Args:
        config: names them.
        seed: for those that draw random numbers of their own.
        person: makes what decides by the keys of a person; None where nobody can play.
    """
    return partial(_make_brains, config, seed, person)


def check_brains(config: RunConfig) -> list[LoadError]:
    """Find the mistakes for which brains can't be made, as far as is known without making them."""
    mistakes = []
    for path, settings in config.blocks():
        for _, request in _requests(config, path, settings):
            mistakes += check_brain(request)
    return mistakes


def lone_brain(config: RunConfig, seed: int, spec: BehaviorSpec) -> ActingPolicy | None:
    """Return the brain that decides for a behaviour id; of several the one with the largest share.

    None if a trainer's policy decides in some games.
    """
    settings = config.behavior_settings(spec.name)
    mine = brains_of_team(settings.brain, spec.team)
    if not mine or not fills([brain.weight for brain in mine]):
        return None
    most = max(mine, key=lambda brain: brain.weight)
    requests = _requests(config, ("behaviors", spec.name), settings, spec, seed)
    return make_brain(next(request for brain, request in requests if brain is most))


def named_brains(config: RunConfig, seed: int, spec: BehaviorSpec) -> dict[str, BrainRequest]:
    """Return how the brains are made that a behaviour names, by their names there."""
    settings = config.behavior_settings(spec.name)
    listed = _requests(config, ("behaviors", spec.name), settings, spec, seed)
    return {brain.name: request for brain, request in listed}


def _make_brains(
    config: RunConfig, seed: int, person: Callable[[BehaviorSpec], ActingPolicy] | None, spec: BehaviorSpec
) -> Sequence[BrainShare]:
    settings = config.behavior_settings(spec.name)
    wanted = [*_requests(config, ("behaviors", spec.name), settings, spec, seed)]
    if not wanted and settings.learns:
        return ()
    mine = brains_of_team([brain for brain, _ in wanted], spec.team)
    if not settings.learns and not fills([brain.weight for brain in mine]):
        named = sorted({team for brain in settings.brain for team in brain.teams or ()})
        raise StageError(
            f"behaviors.{spec.name}.brain: nobody decides for {spec.behavior_id}: brains are given for the teams "
            f"{', '.join(map(str, named))} alone; give one for team {spec.team}, or one without 'teams'",
            ("behaviors", spec.name, "brain"),
        )
    design = design_of(spec, settings, config.source_folder)
    return [
        BrainShare(brain.name, brain.weight, StandIn(make_brain(replace(request, person=person)), design))
        for brain, request in wanted
        if brain in mine
    ]


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


class ModelBrain:
    """Acts by a model; as `ActingPolicy` it keeps its weights.

    Args:
        policy: the model's, loaded.
        deterministic: always take its most likely actions.
    """

    def __init__(self, policy: ActingPolicy, deterministic: bool) -> None:
        self._policy = policy
        self._deterministic = deterministic

    @property
    def memory_size(self) -> int:
        """M of the model."""
        return self._policy.memory_size

    @property
    def previous_action_size(self) -> int:
        """P of the model."""
        return self._policy.previous_action_size

    def load(self, update: PolicyUpdate) -> None:
        """Load nothing: a model does not change."""

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        return self._policy.act(observations, masks, random, deterministic or self._deterministic, recall)


def make_model(request: BrainRequest) -> ModelBrain | None:
    """Read the model.

    Raises:
        LoadError: if there is none, or it was made for other observations or actions.
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


_NAMED = ("best", "opponent")
_STEP = "step "
"""Begins the name of an exported policy that is known by its step."""


class RunPlayers:
    """Those who may play for the behaviours of a run.

    Args:
        config: the run's configuration.
        folder: the run's folder.
        sent: the newest policies by behaviour name, which somebody keeps up to date. Where nothing is learned, the
            newest one is a file.
    """

    def __init__(self, config: RunConfig, folder: Path, sent: Mapping[str, PolicyUpdate]) -> None:
        self._config = config
        self._folder = folder
        self._sent = sent
        self._make = policy_maker(config, folder)

    def choices(self, spec: BehaviorSpec) -> list[str]:
        """Return the names of those who may play for a behaviour id."""
        return [NEWEST, *self._brains(spec)]

    def make(self, spec: BehaviorSpec, name: str) -> Player | None:
        """Return a player; None for the newest policy of a behaviour that has none yet.

        Raises:
            StageError: if there is no player of this name, or it can't play.
        """
        if name == NEWEST:
            return self._newest(spec)
        request = self._brains(spec).get(name)
        if request is None:
            raise StageError(f"there is no player '{name}' for {spec.behavior_id}, or no longer")
        return GreedyPlayer(make_brain(request), spec)

    def _newest(self, spec: BehaviorSpec) -> Player | None:
        brain = lone_brain(self._config, SEED, spec)
        if brain is not None:
            return GreedyPlayer(brain, spec)
        if self._config.checkpoint_settings.inference:
            try:
                update = read_policy_update(policy_file(self._config, self._folder, spec.name), spec.name)
                policy = self._make(spec)
            except RunError as error:
                raise StageError(str(error)) from error
            policy.load(update)
            return GreedyPlayer(policy, spec)
        if spec.name not in self._sent:
            return None
        policy = self._make(spec)
        policy.load(self._sent[spec.name])
        return _Follower(GreedyPlayer(policy, spec), self._sent, spec.name)

    def _brains(self, spec: BehaviorSpec) -> dict[str, BrainRequest]:
        """Those that do not learn, by name; exported policies are the newest first."""
        config, request = self._config, BrainRequest("random", folder=self._config.source_folder, seed=SEED, spec=spec)
        request = replace(request, key=("monitor",), game=config.builtin_game)
        found = {} if config.builtin_game is None else {"scripted": replace(request, use="scripted")}
        found |= named_brains(config, SEED, spec)
        settings = config.evaluation
        if settings is not None and kind_of(settings.opponents) is not None:
            use, arguments = settings.opponents, settings.opponents_with
            found[use] = replace(request, use=use, given=arguments, key=("evaluation", "opponents"))
        found["random"] = request
        name = folder_name(spec.name)
        exported = {_STEP + str(step_in_name(path)): path for path in exports_by_step(self._folder / name, spec.name)}
        named = {label: self._folder / name / f"{name}-{label}.pt" for label in _NAMED}
        files = {label: path for label, path in named.items() if path.is_file()} | dict(reversed(exported.items()))
        return found | {label: replace(request, use=str(path)) for label, path in files.items()}


class _Follower:
    """Plays by the newest policy that was sent."""

    def __init__(self, player: GreedyPlayer, sent: Mapping[str, PolicyUpdate], behavior: str) -> None:
        self._player = player
        self._sent = sent
        self._behavior = behavior
        self._loaded = sent[behavior]

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        newest = self._sent[self._behavior]
        if newest is not self._loaded:
            self._player.load(newest)
            self._loaded = newest
        return self._player(steps)
