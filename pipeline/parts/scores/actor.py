"""Scores on the actor's side: counts the episodes in the actor's environments and reports them to main."""

from __future__ import annotations

from functools import partial

from headrace.config import RunConfig
from headrace.pipeline.control.messages import EpisodesScored
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.evaluation.scores import ScoreKeeper


class ActorScores(ActorPart):
    """Counts one actor's scores."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self.audience = self._scores = ScoreKeeper(
            host.config.inference.wanted,
            host.plan.replica,
            host.config.pipeline.hosts.actors.replicas,
            partial(_competes, host.config),
            host.report,  # immediately, because the run ends with the last actor's score
        )

    def before_report(self) -> None:
        """Send the score for all episodes since the last report."""
        self.host.control.send(EpisodesScored(self._scores.drain(), self._scores.complete))


def _competes(config: RunConfig, name: str) -> bool:
    """Return True if this behaviour has self-play, and False if not or if no settings apply to it."""
    settings = config.known_settings(name)
    return settings is not None and settings.self_play is not None
