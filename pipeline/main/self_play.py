"""Self-play in main: the run's single controller, its part in checkpoints, and the league reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from headrace.config import RunConfig, SelfPlaySettings
from headrace.config.errors import KeyPath, dotted
from headrace.config.opponents import OPPONENT_SAMPLERS
from headrace.pipeline.common.graph import GHOST
from headrace.pipeline.main.behavior import SharedState
from headrace.pipeline.roles.stages import StageHost
from headrace.queues.messages import Matchup
from headrace.stages.errors import LoadError, blaming
from headrace.stages.ghost import GhostController, GhostPolicies, GhostStage, OpponentSampler
from headrace.stages.loading import check_arguments, construct, find_class
from headrace.stages.publisher import PolicyPublisher
from headrace.stages.trainer.report import TrainerReport

_OPPONENTS = ("self_play", "opponents")


class SelfPlay:
    """A run's self-play: creates the ghost stages for each behaviour's route and publishes the controller's matchups.

    Args:
        config: the run's configuration.
        stages: hooks and saved states for stages in main.
        publisher: sends matchups to the actors.
        seed: seed for choosing opponents.
        bystanders: behaviour ids that take no part in self-play. The caller may add ids later.
        ratings: initial ratings that replace `initial_elo`, keyed by behaviour name.
    """

    def __init__(
        self,
        config: RunConfig,
        stages: StageHost,
        publisher: PolicyPublisher,
        seed: int,
        bystanders: Collection[str] = (),
        ratings: Mapping[str, float] | None = None,
    ) -> None:
        self._config = config
        self._ratings = ratings or {}
        self._publisher = publisher
        self.controller = GhostController(np.random.default_rng(seed), bystanders, config.replay is not None)
        state = stages.saved_state(GHOST)
        if state is not None:
            self.controller.load_state_dict(state)
        self.shared = SharedState(GHOST, stages, self.controller.state_dict)

    def add(self, behavior: str) -> None:
        """Add a behaviour with self-play that is about to start training.

        Raises:
            LoadError: if its opponent sampler can't be created.
        """
        settings = self._config.behavior_settings(behavior)
        assert settings.self_play is not None, "a behaviour with this route has self-play"
        self.shared.add(behavior)
        sampler = make_sampler(self._config, behavior)
        rating = self._ratings.get(behavior, settings.self_play.initial_elo)
        self_play = settings.self_play.model_copy(update={"initial_elo": rating})
        self.controller.add_history(behavior, self_play, sampler, settings.max_steps)

    def add_behavior(self, behavior_id: str) -> None:
        """Add a behaviour id: a new team of a behaviour with self-play."""
        self.publish(self.controller.add_behavior(behavior_id))

    def all_announced(self) -> None:
        """Record that the environments have announced all their initial behaviour ids."""
        self.publish(self.controller.all_announced())

    def on_report(self, report: TrainerReport) -> None:
        """Handle a trainer's report; do nothing if its behaviour has no self-play."""
        if report.behavior in self.controller.histories:
            self.publish(self.controller.receive_report(report.behavior, report.done, report.version))

    def rewind(self, behavior: str, step: int) -> None:
        """Roll a behaviour's self-play back to an earlier trainer step.

        Do nothing if the behaviour has no self-play.
        """
        if behavior in self.controller.histories:
            self.controller.rewind(behavior, step)

    def elo(self, behavior: str) -> float:
        """Return the rating of a behaviour's newest policy."""
        return self.controller.elo(behavior)

    def trajectory_stage(self, behavior: str) -> GhostStage:
        """Create the stage between the actors and the trainer."""
        return GhostStage(self.controller, self.publish)

    def policy_stage(self, behavior: str) -> GhostPolicies:
        """Create the stage between the trainer and the publisher."""
        return GhostPolicies(self.controller, self.publish)

    def publish(self, matchup: Matchup | None) -> None:
        """Send a matchup to the actors, if there is a new one."""
        if matchup is not None:
            self._publisher.publish_matchup(matchup)

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return a league report for each behaviour that has had a policy."""
        histories = self.controller.histories.items()
        return {behavior: self.controller.report(behavior) for behavior, h in histories if h.newest is not None}


def make_sampler(config: RunConfig, behavior: str) -> OpponentSampler:
    """Create a behaviour's opponent sampler from its `self_play` settings.

    Raises:
        LoadError: if the sampler can't be imported, does not accept its arguments, or raises an exception.
    """
    settings = config.behavior_settings(behavior).self_play
    assert settings is not None, "only called for behaviours with self-play"
    path = ("behaviors", behavior)
    sampler_class, arguments = _find_sampler(config, path, settings)
    with blaming(*path, *_OPPONENTS):
        sampler: OpponentSampler = construct(dotted((*path, *_OPPONENTS)), settings.opponents, sampler_class, arguments)
    return sampler


def check_samplers(config: RunConfig) -> list[LoadError]:
    """Return the mistakes in the behaviours' opponent samplers that can be found without creating the samplers."""
    mistakes = []
    for path, settings in config.blocks():
        if settings.self_play is not None:
            try:
                _find_sampler(config, path, settings.self_play)
            except LoadError as error:
                mistakes.append(error)
    return mistakes


def _find_sampler(config: RunConfig, path: KeyPath, settings: SelfPlaySettings) -> tuple[type[Any], dict[str, Any]]:
    built_in, where = OPPONENT_SAMPLERS.get(settings.opponents), dotted((*path, *_OPPONENTS))
    use, folder = (built_in.implementation, None) if built_in else (settings.opponents, config.source_folder)
    with blaming(*path, *_OPPONENTS):
        sampler_class = find_class(where, use, folder)
        if not callable(getattr(sampler_class, "choose", None)):
            raise LoadError(f"{where}: {use} has no method choose(candidates, random)")
        return sampler_class, check_arguments(where, use, sampler_class, settings.opponents_with)
