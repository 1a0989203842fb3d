"""The scores of a run with `--inference`: collected from its actors, logged as a table, written to its folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.common.graph import actor_names
from headrace.pipeline.control import EpisodesScored
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.queues.files import REAL, write_atomic
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.evaluation.scores import EpisodeResults, Score, ScoreKeeper, ScoreSums, score_table
from headrace.startup_context import shown

log = logging.getLogger(__name__)


class ActorScores(ActorPart):
    """Counts one actor's scores."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)

        def competes(name: str) -> bool:
            settings = host.config.known_settings(name)
            return settings is not None and settings.self_play is not None

        self.audience = self._scores = ScoreKeeper(
            host.config.inference.wanted,
            host.plan.replica,
            host.config.pipeline.hosts.actors.replicas,
            competes,
            host.report,  # immediately, because the run ends with the last actor's score
        )

    def before_report(self) -> None:
        """Send the score for all episodes since the last report."""
        self.host.control.send(EpisodesScored(self._scores.drain(), self._scores.complete))


FILE = "inference.json"
"""Name of the scores file in the folder for the run's logs."""


class ScoreBoard(RunPart):
    """The combined scores of all actors."""

    receives = (EpisodesScored,)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._config = config = run.plan.config
        self._wanted = config.inference.wanted
        self._missing = {*actor_names(config)}
        """Names of the actors whose counted episodes have not all ended."""
        self._sums: dict[str, dict[str, ScoreSums]] = {}

    def receive(self, host: HostHandle, message: EpisodesScored) -> None:
        """Add an actor's score. End the run once all counted episodes have ended."""
        actor = host.plan.name
        sums = self._sums.setdefault(actor, {})
        for behavior_id, (returns, lengths, results) in message.played.items():
            if behavior_id not in sums:
                sums[behavior_id] = ScoreSums(keep=self._wanted is not None)
            sums[behavior_id].add(EpisodeResults(returns, lengths, results))
        if message.complete:
            self._missing.discard(actor)
        if not self._missing:
            self.run.shutdown.finish()

    def actor_replaced(self, name: str) -> None:
        """Discard an actor's score, because its replacement plays the actor's share of the episodes again."""
        if self._wanted is not None:
            self._sums.pop(name, None)
            self._missing.add(name)

    def report(self) -> Mapping[str, Any]:
        """Log and write the scores, and return them."""
        scores = self._scores()
        if scores:
            self._publish(scores)
        elif self._sums:
            log.warning("No episode has ended, so there is no score.")
        return {"scores": scores}

    def _scores(self) -> dict[str, Score]:
        """Return the scores, keyed by behaviour id, without ids that have completed no episode.

        A rating belongs to the trained policy, so a behaviour id played by brains has no rating.
        """
        together: dict[str, ScoreSums] = {}
        for sums in self._sums.values():
            for behavior_id, played in sums.items():
                together.setdefault(behavior_id, ScoreSums(keep=self._wanted is not None)).join(played)
        try:
            status = self.run.plan.folder.read_training_status().behaviors
        except RunFolderError as error:
            log.warning("No ratings are available: %s", error)
            status = {}
        scores = {}
        for behavior_id in sorted(together, key=lambda key: (behavior_name(key), behavior_team(key))):
            name = behavior_name(behavior_id)
            settings = self._config.known_settings(name)  # None is reported elsewhere
            learns = settings is not None and settings.learns
            rating = status[name].elo if learns and name in status else None
            score = together[behavior_id].score(rating)
            if score is not None:
                scores[behavior_id] = score
        return scores

    def _publish(self, scores: Mapping[str, Score]) -> None:
        """Log the scores as a table and write them to a file; a disk error causes only a warning."""
        folder = self.run.plan.folder
        path = folder.run_logs / FILE
        try:
            REAL.make_folder(folder.run_logs)
            described = {behavior_id: self._described(behavior_id, score) for behavior_id, score in scores.items()}
            played = {"episodes": self._wanted, "complete": not self._missing, "behaviors": described}
            write_atomic(path, json.dumps(played, indent=1).encode())
            log.info("Scores (%s):\n%s", shown(path), score_table(scores))
        except OSError as error:
            log.info("Scores:\n%s", score_table(scores))
            log.warning("The scores could not be written to %s: %s", path, error)
        short = [behavior_id for behavior_id, score in scores.items() if score.episodes < (self._wanted or 0)]
        if short:
            text = "Fewer than the requested %d episodes have ended for: %s."
            log.warning(text, self._wanted, ", ".join(short))

    def _described(self, behavior_id: str, score: Score) -> dict[str, Any]:
        """Return a score as JSON data, omitting results or a rating if there are none."""
        settings = self._config.known_settings(behavior_name(behavior_id))
        omitted = ("won", "drawn", "lost") * (not score.games) + ("rating",) * (score.rating is None)
        plain = {name: value for name, value in asdict(score).items() if name not in omitted}
        return {"deterministic": settings is not None and settings.network_settings.deterministic, **plain}
