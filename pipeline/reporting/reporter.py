"""Main's reporter: writes a summary at every `summary_freq` and at the end, and updates the live table.

The reporter also merges the statistics of all hosts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.pipeline.control import EpochEnded, PolicyEvaluated
from headrace.pipeline.reporting.console import (
    ELO,
    EPISODE_LENGTH,
    REWARD,
    BehaviorProgress,
    ConsoleWriter,
    Progress,
    ProgressSnapshot,
    QueueProgress,
)
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsCollector, StatisticsWriter, Summary
from headrace.pipeline.reporting.time_shares import TimeShares, find_bottleneck
from headrace.stages.evaluation.scores import Score
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)

STEP_COUNTS = "Steps/"
"""Prefix of the statistics that count a stage's agent steps; summaries have rates instead of these statistics."""


class Reporter:
    """Turns statistics into summaries and progress.

    Args:
        collector: main's statistics.
        writers: receive the summaries.
        progress: the live table.
        elapsed_before_s: seconds that the run took before it was resumed.
        training: False if policies play without being trained.
        console: True to also log a line per summary, as ML-Agents does.
        clock: returns seconds from any origin.
        waits: True to leave the writers' files unchanged until `go_on`.
        before_summary: called before each summary, to check that the run's folder is still the run's.

    Attributes:
        progress: the live table.
        paused: True while a user has paused the run.
    """

    def __init__(
        self,
        collector: StatisticsCollector,
        writers: Sequence[StatisticsWriter],
        progress: Progress,
        elapsed_before_s: float = 0.0,
        training: bool = True,
        console: bool = False,
        clock: Callable[[], float] = time.monotonic,
        waits: bool = False,
        before_summary: Callable[[], object] = lambda: None,
    ) -> None:
        self._before_summary = before_summary
        self._collector = collector
        self._writers = [*writers]
        self._console = [ConsoleWriter(lambda: self.elapsed_s)] if console else []
        self.progress = progress
        self._training = training
        self.paused = False
        self._clock = clock
        self._began_s = clock() - elapsed_before_s
        self._waiting: list[Callable[[], None]] | None = [] if waits else None
        self._behaviors: dict[str, _BehaviorWatch] = {}
        self._blocks: dict[str, Any] = {}
        self._queues: dict[str, _QueueWatch] = {}
        self._rates = _StageRates()
        self._summarized_s = clock()
        self.shares = TimeShares(clock)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run has taken so far, including the time before it was resumed."""
        return self._clock() - self._began_s

    def add_writer(self, writer: StatisticsWriter) -> None:
        """Add a writer for all later summaries."""
        self._writers.append(writer)

    def add_behavior(
        self, name: str, max_steps: int, summary_freq: int, step: int, hyperparameters: Any, learns: bool = True
    ) -> None:
        """Add a behaviour that starts or resumes at this step."""
        self._behaviors[name] = _BehaviorWatch(name, max_steps, summary_freq, step, learns)
        self._blocks[name] = hyperparameters
        for writer in self._console:
            writer.add_property(name, "hyperparameters", hyperparameters)

        def begin() -> None:
            for writer in self._writers:
                if step and self._training:  # the stopped run may have written a summary for steps that are now lost
                    writer.rewind(name, step)
                writer.add_property(name, "hyperparameters", hyperparameters)

        self._write_once_resumed(begin)

    def go_on(self) -> None:
        """Allow the writers to change files. Called once the run has resumed from its checkpoint."""
        waiting, self._waiting = self._waiting or [], None
        for begin in waiting:
            begin()

    def _write_once_resumed(self, write: Callable[[], None]) -> None:
        if self._waiting is None:
            write()
        else:
            self._waiting.append(write)

    def rewind(self, name: str, step: int) -> None:
        """Move a behaviour back to an earlier step, where its trainer continues."""
        self._behaviors[name].rewind(step)
        self._collector.summaries(name)  # drop values that belong to lost steps
        for writer in self._writers:
            writer.rewind(name, step)
            writer.rewind(PIPELINE, step)

    def mark(self, name: str, step: int, kind: str, text: str) -> None:
        """Mark a point on a behaviour's curves, in the writers that support marks.

        Args:
            name: the behaviour.
            step: the behaviour's step.
            kind: as for `headrace.pipeline.reporting.history.Mark`.
            text: what happened.
        """

        def write() -> None:
            for writer in self._writers:
                writer.mark(name, step, kind, text)

        self._write_once_resumed(write)

    def add_statistics(
        self, statistics: Mapping[str, Any], queues: Iterable[Mapping[str, Any]], host: str, span_s: float = 0.0
    ) -> None:
        """Add a host's statistics and queue counts for a period of `span_s` seconds, measured by the host's clock."""
        of_pipeline = dict(statistics.get(PIPELINE, {}))
        counts = {name: of_pipeline.pop(name)["sum"] for name in [*of_pipeline] if name.startswith(STEP_COUNTS)}
        self._rates.add(host, counts, span_s)
        self._collector.merge({**statistics, PIPELINE: of_pipeline})
        for queue in queues:
            key = f"{queue['name']} ({host})"
            if key not in self._queues:
                self._queues[key] = _QueueWatch(key, queue)
            self._queues[key].update(queue)

    def record_report(self, report: TrainerReport) -> None:
        """Record a trainer's progress, and write a summary if one is due.

        If several summaries are due at once, only the last is written, because the others would be empty.
        """
        behavior = self._behaviors[report.behavior]
        behavior.record(report)
        if report.step >= behavior.next_summary:
            beyond = (report.step - behavior.next_summary) // behavior.summary_freq
            due = behavior.next_summary + beyond * behavior.summary_freq
            behavior.next_summary = due + behavior.summary_freq
            self._summarize(behavior, due)

    def record_evaluation(self, message: PolicyEvaluated) -> None:
        """Log a policy's evaluation, and write it at the policy's step."""
        score = Score(**message.score)
        log.info(
            "%s. Step: %d. Evaluation: %.3f ± %.3f over %d episodes%s. Min: %.3f. Max: %.3f. Episode Length: %.1f.",
            message.behavior,
            message.step,
            score.mean,
            score.deviation,
            score.episodes,
            ", the best so far" if message.best else "",
            score.lowest,
            score.highest,
            score.length,
        )
        values = {
            "Evaluation/Cumulative Reward": score.mean,
            "Evaluation/Std of Reward": score.deviation,
            "Evaluation/Min Reward": score.lowest,
            "Evaluation/Max Reward": score.highest,
            "Evaluation/Episode Length": score.length,
            "Evaluation/Min Episode Length": float(score.shortest),
            "Evaluation/Max Episode Length": float(score.longest),
        }
        self._write_at(message.behavior, values, message.step)

    def record_finding(self, behavior: str, cause: str, value: float, step: int, text: str) -> None:
        """Write a finding of the diagnosis: its value as `Diagnosis/<cause>` at its step, and a mark on the curves."""
        self._write_at(behavior, {f"Diagnosis/{cause}": value}, step)
        self.mark(behavior, step, "finding", text)

    def record_epoch(self, message: EpochEnded) -> None:
        """Write the statistics of an epoch, at the epoch's last step."""
        self._write_at(message.behavior, message.values, message.step)

    def show(self) -> None:
        """Refresh the live table if it is due."""
        if self.progress.due():
            self.progress.update(self.snapshot())

    def snapshot(self) -> ProgressSnapshot:
        """Return the run's current progress."""
        learning = any(each.learns for each in self._behaviors.values())
        return ProgressSnapshot(
            self.elapsed_s,
            tuple(
                each.progress
                if self._training and (each.learns or not learning)
                else replace(each.progress, max_steps=None)
                for each in self._behaviors.values()
            ),
            tuple(watch.progress for watch in self._queues.values()),
            find_bottleneck(numbers := self.shares.numbers(), self._blocks),
            numbers,
            self.paused,
        )

    def host_ended(self, name: str) -> None:
        """Remove a host that has ended, so its reports no longer count."""
        self.shares.ended(name)
        self._rates.ended(name)

    def finish(self) -> None:
        """Write a final summary for each behaviour that has made steps since its last summary.

        A behaviour whose last summary is at `max_steps` gets no final summary: the few steps beyond would only add a
        noisy point to every curve.
        """
        for behavior in self._behaviors.values() if self._waiting is None else ():
            steps = behavior.progress.steps
            if self._training and behavior.summarized < min(steps, behavior.progress.max_steps or steps):
                self._summarize(behavior, steps)

    def close(self) -> None:
        """Close the writers."""
        for writer in self._writers:
            writer.close()

    def drop_writers(self) -> None:
        """Close and remove all writers; called when the run's folder is lost."""
        self.close()
        self._writers = []

    def _write_at(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """Write values at a particular step, outside the regular summaries."""
        summaries = {name: Summary.single(value) for name, value in values.items()}
        for writer in self._writers:
            writer.write(behavior, summaries, step)

    def _summarize(self, behavior: _BehaviorWatch, step: int) -> None:
        self._before_summary()
        present = behavior.progress
        self._collector.add(present.name, "Is Training", float(self._training and behavior.learns), "last")
        self._collector.add(present.name, "Step", float(present.steps), "last")
        self._collector.add(present.name, "Pipeline/Steps per Second", present.steps_per_s, "last")
        if self._training and behavior.learns:
            self._collector.add(present.name, "Pipeline/Updates", float(present.updates), "last")
        summaries = self._collector.summaries(present.name)
        shown = {key: getattr(summaries[name], what) for key, name, what in _IN_TABLE if name in summaries}
        behavior.progress = replace(present, **shown)
        pipeline = self._collector.summaries(PIPELINE)
        now_s = self._clock()
        counts = {name: pipeline.pop(name).sum for name in [*pipeline] if name.startswith(STEP_COUNTS)}
        self._rates.add("", counts, now_s - self._summarized_s)
        self._summarized_s = now_s
        values: dict[str, float] = {}
        for watch in self._queues.values():
            queue = watch.progress
            values[f"Queue Depth/{queue.name}"] = float(queue.depth)
            values[f"Producer Wait/{queue.name}"] = queue.producers_wait
            values[f"Consumer Wait/{queue.name}"] = queue.consumers_wait
        values |= self.shares.numbers()
        values |= {f"Steps per Second/{stage}": rate for stage, rate in self._rates.sums().items()}
        pipeline |= {name: Summary.single(value) for name, value in values.items()}
        for writer in (*self._writers, *self._console):
            writer.write(present.name, summaries, step)
            writer.write(PIPELINE, pipeline, step)
        behavior.summarized = present.steps


class _StageRates:
    """Computes each stage's agent steps per second, from the stage's step counts and its host's clock."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[Counter[str], float]] = {}
        """Each host's step counts by stage, and the seconds in which they were counted."""
        self._rates: dict[str, dict[str, float]] = {}
        """Steps per second, keyed by host and then by stage."""

    def add(self, host: str, counts: Mapping[str, float], span_s: float) -> None:
        """Add the steps that a host's stages have counted in a period, keyed by the names of the statistics."""
        steps, seconds = self._counted.get(host, (Counter(), 0.0))
        steps.update(counts)
        self._counted[host] = steps, seconds + span_s

    def sums(self) -> dict[str, float]:
        """Return each stage's rate, summed over all hosts."""
        for host, (steps, seconds) in [*self._counted.items()]:
            if seconds >= 1.0:
                self._rates[host] = {name.removeprefix(STEP_COUNTS): count / seconds for name, count in steps.items()}
                del self._counted[host]
        sums: dict[str, float] = {}
        for rates in self._rates.values():
            for stage, rate in rates.items():
                sums[stage] = sums.get(stage, 0.0) + rate
        return sums

    def ended(self, host: str) -> None:
        """Remove a host that has ended."""
        self._counted.pop(host, None)
        self._rates.pop(host, None)


class _BehaviorWatch:
    """Tracks one behaviour's progress and speed, measured by its trainer's clock."""

    SHORTEST_S = 1.0

    def __init__(self, name: str, max_steps: int, summary_freq: int, step: int, learns: bool) -> None:
        self.learns = learns
        self.summary_freq = summary_freq
        self.progress = BehaviorProgress(name, step, max_steps, 0.0)
        self.rewind(step)

    def rewind(self, step: int) -> None:
        self.next_summary = step + self.summary_freq - step % self.summary_freq
        self.summarized = step
        self.progress = replace(self.progress, steps=step)
        self._updated: TrainerReport | None = None
        self._mark: TrainerReport | None = None

    def record(self, report: TrainerReport) -> None:
        """Record a report.

        Speeds cover complete updates, because steps arrive fast during collection and not at all during learning.
        """
        speed = self.progress.steps_per_s
        since = self._updated if report.version else self._mark  # before the first update, since the last measurement
        if since is None or since.at > report.at:
            self._updated = self._mark = report
        elif report.at - since.at >= self.SHORTEST_S and (report.version > since.version or not report.version):
            speed, self._mark = (report.step - since.step) / (report.at - since.at), report
            self._updated = report if report.version else self._updated
        self.progress = replace(
            self.progress,
            steps=report.step,
            steps_per_s=speed,
            updates=report.updates,
            mean_reward=report.recent_return,
        )


_IN_TABLE = (
    ("reward_std", REWARD, "std"),
    ("episode_length", EPISODE_LENGTH, "mean"),
    ("elo", ELO, "last"),
    ("policy_lag", "Policy/Lag", "mean"),
)
"""The fields of `BehaviorProgress` that summaries provide, each with the statistic and the part of its summary."""


class _QueueWatch:
    """Tracks one end of a queue: its depth, and the fraction of the time that producers and consumers waited.

    Times are measured by the reporting host's clock, because messages that cover many seconds may reach main together.
    """

    SHORTEST_S = 0.5
    """Minimum number of seconds over which a rate is computed. A host reports once a second, and also when a summary is
    due."""

    def __init__(self, name: str, counts: Mapping[str, Any]) -> None:
        self._since = counts
        self.progress = QueueProgress(name, counts["size"], counts["maxlen"], counts["high_water"], 0.0, 0.0)

    def update(self, counts: Mapping[str, Any]) -> None:
        before = self._since
        span = counts["at"] - before["at"]
        changes = {"depth": counts["size"], "bound": counts["maxlen"], "high_water": counts["high_water"]}
        if span >= self.SHORTEST_S:
            items = max(counts["items_in"] - before["items_in"], counts["items_out"] - before["items_out"])
            put_wait, get_wait = (
                counts["put_wait_s"] - before["put_wait_s"],
                counts["get_wait_s"] - before["get_wait_s"],
            )
            changes["items_per_s"] = max(0.0, items / span)  # a restarted host counts from 0
            changes["producers_wait"] = min(1.0, max(0.0, put_wait / span))
            changes["consumers_wait"] = min(1.0, max(0.0, get_wait / span))
        if not 0 <= span < self.SHORTEST_S:  # a restarted host may have another machine's clock
            self._since = counts
        self.progress = replace(self.progress, **changes)
