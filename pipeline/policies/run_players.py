"""Players of an exhibition that act by the policies of a run: the newest one, and the exported ones in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from config import RunConfig
from pipeline.common.errors import RunError
from pipeline.policies.export import exports_by_step, step_in_name
from pipeline.policies.inference import policy_file, policy_maker
from pipeline.policies.model_files import ModelFile, read_model, read_policy_update
from pipeline.run_folder.folder import folder_name
from queues.messages import ActionBatch, PolicyUpdate
from queues.specs import BehaviorSpec
from stages.environment.protocol import AgentSteps
from stages.errors import StageError
from stages.evaluation.players import GreedyPlayer, Player

_NAMED = ("best", "opponent")
_STEP = "step "
"""Begins the name of a snapshot that is known by its step."""


class RunPolicies:
    """The policies of a run.

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

    def newest(self, spec: BehaviorSpec) -> Player | None:
        """Return the player of the newest policy; None if there is none yet.

        Raises:
            StageError: if its file can't be played.
        """
        if self._config.checkpoint_settings.inference:
            try:
                update = read_policy_update(policy_file(self._config, self._folder, spec.name), spec.name)
            except RunError as error:
                raise StageError(str(error)) from error
            return GreedyPlayer(self._make(spec), update, spec)
        if spec.name not in self._sent:
            return None
        return _Follower(GreedyPlayer(self._make(spec), self._sent[spec.name], spec), self._sent, spec.name)

    def snapshots(self, spec: BehaviorSpec) -> list[str]:
        """Return the names of the exported policies, the newest first: `step 500000`, `best`."""
        name = folder_name(spec.name)
        folder = self._folder / name
        named = [label for label in _NAMED if (folder / f"{name}-{label}.pt").is_file()]
        steps = [step_in_name(path) for path in exports_by_step(folder, spec.name)]
        return [*named, *(f"{_STEP}{step}" for step in reversed(steps))]

    def snapshot(self, spec: BehaviorSpec, name: str) -> Player:
        """Return the player of an exported policy.

        Raises:
            StageError: if there is none of this name, or it can't be played.
        """
        if name not in self.snapshots(spec):
            raise StageError(f"there is no policy '{name}' of {spec.name} any more: the run keeps so many only")
        stem = folder_name(spec.name)
        path = self._folder / stem / f"{stem}-{name.removeprefix(_STEP)}.pt"
        try:
            model = read_model(ModelFile(path, spec.name), spec, self._config.source_folder)
            return GreedyPlayer(model.make_policy(), model.update, spec)
        except RunError as error:
            raise StageError(str(error)) from error


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
