"""Creates the brains that a configuration names, for behaviours and self-play opponents, including trained models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.brains import BrainSettings, brains_of_team, fills
from headrace.config.errors import KeyPath
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import find_model, find_models, read_model
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.brains import StandIn, check_brain, make_brain
from headrace.stages.brains.protocol import BrainRequest, BrainShare, Unchanging
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.policy.design import design_of
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall


def brain_maker(
    config: RunConfig, seed: int, person: Callable[[BehaviorSpec], ActingPolicy] | None = None
) -> Callable[[BehaviorSpec], Sequence[BrainShare]]:
    """Return a function that makes the brains for a behaviour id, each with the fraction of games that it plays.

    Args:
        config: the configuration, which names the brains.
        seed: seed for brains that draw their own random numbers.
        person: makes the brain that a human player controls by keyboard; None if no human can play.
    """
    return partial(_make_brains, config, seed, person)


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


@preparing()
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


class ModelBrain(Unchanging):
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
