"""The diagnosis of a run while it trains: a statistics writer that asks the rules at every summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.diagnosis.evidence import Evidence, Finding
from headrace.pipeline.diagnosis.rules import Rule, diagnose
from headrace.pipeline.reporting.history import History, HistoryWriter
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsWriter, Summary
from headrace.stages.errors import LoadError, blaming, describe_error, is_failure
from headrace.stages.loading import construct, find_class

log = logging.getLogger(__name__)
FINDINGS = "Diagnosis/"
"""Prefix of the statistics that mark a finding at its step."""


def load_rules(config: RunConfig) -> list[Rule]:
    """Return the user's rules. A rule that raises is named once, and asked no more.

    Raises:
        RunError: if a rule can't be imported, takes arguments, raises, or has no method `check`.
    """
    rules, mistakes = _loaded(config)
    if mistakes:
        raise RunError(str(mistakes[0])) from mistakes[0]
    return [*map(_GuardedRule, rules)]


def check_rules(config: RunConfig) -> list[LoadError]:
    """Return the mistakes in the user's rules."""
    return _loaded(config)[1]


def _loaded(config: RunConfig) -> tuple[list[Rule], list[LoadError]]:
    rules, mistakes = list[Rule](), list[LoadError]()
    for index, reference in enumerate(config.pipeline.diagnosis_rules):
        where = f"pipeline.diagnosis_rules.{index}"
        try:
            with blaming("pipeline", "diagnosis_rules", index):
                rules.append(construct(where, reference, find_class(where, reference, config.source_folder), {}))
                if not callable(getattr(rules[-1], "check", None)):
                    raise LoadError(f"{where}: {reference} is not a rule: it has no check(run); see docs/diagnosis.md")
        except LoadError as error:
            mistakes.append(error)
    return rules, mistakes


class RunDiagnosis(StatisticsWriter):
    """Collects a run's statistics, and tells each cause once per behaviour, when the rules first find it.

    Args:
        config: the run's configuration.
        tell: called with each new finding, which is also logged.
        resumed: True if `history` gets the earlier part of the run before the first summary.

    Attributes:
        history: the run's statistics.
        findings: the newest finding of each behaviour that has one, keyed by behaviour.
    """

    def __init__(self, config: RunConfig, tell: Callable[[Finding], None], resumed: bool = False) -> None:
        self._config = config
        self._rules: Sequence[Rule] = load_rules(config)
        self._tell = tell
        self.history = History()
        self._writer = HistoryWriter(self.history, resumed)
        self._told: set[tuple[str, str]] = set()
        self.findings: dict[str, Finding] = {}

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Add a summary, and ask the rules about its behaviour."""
        if category == PIPELINE or not any(name.startswith(FINDINGS) for name in summaries):
            self._writer.write(category, summaries, step)
        self.history.take_fresh()
        if category != PIPELINE and "Is Training" in summaries:  # neither an evaluation nor an epoch
            self._ask(category, ended=False)

    def rewind(self, category: str, step: int) -> None:
        """Forget what is beyond a step, at which the run continues."""
        self._writer.rewind(category, step)

    def finish(self) -> list[Finding]:
        """Ask the rules again, about the whole run; log and return every behaviour's finding."""
        for behavior in self.history.categories():
            if behavior != PIPELINE:
                self._ask(behavior, ended=True)
        for finding in self.findings.values():
            log.log(finding.level, "%s", finding)
        return [*self.findings.values()]

    def _ask(self, behavior: str, ended: bool) -> None:
        settings = self._config.known_settings(behavior)
        if settings is None or not settings.learns:
            return
        evidence = Evidence(behavior, self.history.curves(behavior), settings, self._config, ended)
        found = diagnose(evidence, self._rules)
        if found is None:
            self.findings.pop(behavior, None)
            return
        self.findings[behavior] = found
        if (behavior, found.cause) not in self._told:
            self._told.add((behavior, found.cause))
            log.log(found.level, "%s", found)
            self._tell(found)


class _GuardedRule:
    """A user's rule, which is asked no more once it has raised."""

    def __init__(self, rule: Rule) -> None:
        self._rule: Rule | None = rule

    def check(self, run: Evidence) -> Finding | None:
        if self._rule is None:
            return None
        try:
            return self._rule.check(run)
        except BaseException as error:
            if not is_failure(error):
                raise
            log.error("Rule %s raised: %s. It is not asked again.", type(self._rule).__name__, describe_error(error))
            self._rule = None
            return None
