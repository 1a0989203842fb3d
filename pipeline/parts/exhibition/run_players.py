"""Players for an exhibition: a run's newest and exported policies, and brains that do not learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.brains import SCRIPTED_PLAYERS, kind_of
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.brains import lone_brain, named_brains
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.policies.inference import policy_file, policy_maker
from headrace.pipeline.policies.model_files import read_policy_update
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import make_brain
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import SEED, GreedyPlayer, Player
from headrace.stages.exhibition.show import NEWEST

_NAMED = ("best", "opponent")
_STEP = "step "
"""Prefix of an exported policy's player name, followed by the policy's step."""


class RunPlayers:
    """The players available for a run's behaviours.

    Args:
        config: the run's configuration.
        folder: the run's folder.
        sent: the newest policies, keyed by behaviour name; the caller updates this mapping. Not used in inference mode,
            where the newest policy is read from a file.
    """

    def __init__(self, config: RunConfig, folder: Path, sent: Mapping[str, PolicyUpdate]) -> None:
        self._config = config
        self._folder = folder
        self._sent = sent
        self._make = policy_maker(config, folder)

    def choices(self, spec: BehaviorSpec) -> list[str]:
        """Return the names of the players available for a behaviour id."""
        return [NEWEST, *self._brains(spec)]

    def make(self, spec: BehaviorSpec, name: str) -> Player | None:
        """Create a player; return None for the newest policy of a behaviour that has no policy yet.

        Raises:
            StageError: if no player has this name, or the player can't play.
        """
        if name == NEWEST:
            return self._newest(spec)
        request = self._brains(spec).get(name)
        if request is None:
            raise StageError(f"player '{name}' for {spec.behavior_id} does not exist or is gone")
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
        """Return requests for players that do not learn, keyed by player name; exported policies come newest first."""
        config, request = self._config, BrainRequest("random", folder=self._config.source_folder, seed=SEED, spec=spec)
        request = replace(request, key=("monitor",), game=config.builtin_game)
        found = {"scripted": replace(request, use="scripted")} if config.builtin_game in SCRIPTED_PLAYERS else {}
        found |= named_brains(config, SEED, spec)
        settings = config.evaluation
        if settings is not None and kind_of(settings.opponents) is not None:
            use, arguments = settings.opponents, settings.opponents_with
            found[use] = replace(request, use=use, given=arguments, key=("evaluation", "opponents"))
        found["random"] = request
        folder = behavior_folder(self._folder, spec.name)
        exported = {_STEP + str(step_in_name(path)): path for path in exports_by_step(folder, spec.name)}
        named = {label: folder / f"{folder.name}-{label}.pt" for label in _NAMED}
        files = {label: path for label, path in named.items() if path.is_file()} | dict(reversed(exported.items()))
        return found | {label: replace(request, use=str(path)) for label, path in files.items()}


class _Follower:
    """Plays with the newest policy sent so far."""

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
