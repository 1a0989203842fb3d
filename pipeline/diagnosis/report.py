"""`--diagnose`: why finished or running runs do not learn, from their folders, with probes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from headrace.config import ConfigError, RunConfig
from headrace.config.paths import name_of_file
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.diagnosis.evidence import RETURN, Evidence, Finding
from headrace.pipeline.diagnosis.live import load_rules
from headrace.pipeline.diagnosis.rules import diagnose, planned_gradient_steps
from headrace.pipeline.main.run_shape import ProbeError, probe
from headrace.pipeline.reporting.history import History, Point, read_events
from headrace.pipeline.reporting.other_logs import OTHER, read_other_logs
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.run_folder.resuming import kept_configuration

PROBE_S = 60.0
SEVERITIES = ("error", "warning", "hint")


class Diagnosis:
    """The findings about one run.

    Args:
        folder: `results/<run-id>`, or a folder with event files of Stable-Baselines3 or CleanRL.
        probes: whether to run the probes.

    Attributes:
        findings: one finding at most per behaviour, the errors first, then the warnings.
        looked_at: lines about what was read and probed, and what was not.
        evidence: the evidence about each behaviour.

    Raises:
        RunFolderError: if the folder has no statistics.
    """

    def __init__(self, folder: Path, probes: bool) -> None:
        self.folder = folder
        self.looked_at: list[str] = []
        self.config = _configuration(folder)
        self.evidence = [*self._evidence()]
        if not self.evidence:
            raise RunFolderError(f"{folder} has no statistics of a behaviour that learns")
        if probes and self.config is not None:
            self._probe(self.config)
        rules = [] if self.config is None else load_rules(self.config)
        found = [one for evidence in self.evidence if (one := diagnose(evidence, rules)) is not None]
        self.findings = sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

    def _evidence(self) -> Iterator[Evidence]:
        history, config = History(), self.config
        if config is None:
            curves = _curves_of_others(self.folder)
            self.looked_at.append(f"{len(curves)} statistics of another library; settings and rows are unknown")
            yield Evidence(self.folder.name, curves, ended=True)
            return
        read_events(self.folder, config.behaviors, history)
        known = {name: history.curves(name) for name in history.categories()}
        for path in sorted(self.folder.glob("*/statistics.csv")):  # of runs without event files
            if (name := name_of_file(path.parent.name)) not in known:
                known[name] = _read_csv(path)
        for name, own in known.items():
            if name != PIPELINE and (settings := config.known_settings(name)) is not None and settings.learns:
                self.looked_at.append(f"{name}: {len(own)} statistics up to step {_last_step(own)}")
                yield Evidence(name, own, settings, config, ended=True)

    def _probe(self, config: RunConfig) -> None:
        facts, why_not = _facts(config, self.folder)
        if why_not:
            self.looked_at.append(f"not probed: the environment: {why_not}")
        for evidence in self.evidence:
            own = facts.get(evidence.behavior, {})
            evidence.curves = {
                **evidence.curves,
                **{name: [(0, 0.0, value), *evidence.curves.get(name, ())] for name, value in own.items()},
            }
            self.looked_at += [f"{evidence.behavior}: {line}" for line in _said(own)]


def _said(facts: Mapping[str, float]) -> Iterator[str]:
    """Yield what the probes did and saw, in words."""
    if facts:
        yield "random play, and constant actions from one seed"
    effects = [value for name, value in facts.items() if name.startswith("Probe/Effect of Component ")]
    if effects:
        ignored = [str(i) for i, value in enumerate(effects) if value < 0.01 * max(effects)]
        which = f"all but {', '.join(ignored)}" if ignored else "all"
        yield f"each component of the observation permuted: the policy reacts to {which}"
    if (explained := facts.get("Probe/Return by Value")) is not None:
        permuted = facts.get("Probe/Return by Value of Permuted Rewards", 0.0)
        yield f"the critic explains {explained:.0%} of random play's returns ({permuted:.0%} with permuted rewards)"
    if (learned := facts.get("Probe/One-Step Task")) is not None:
        verdict = "learn" if learned > 0.5 else "do not learn"
        yield f"the settings {verdict} a one-step task with these spaces ({learned:.2f} of 1)"


def _facts(config: RunConfig, folder: Path | str = "") -> tuple[dict[str, dict[str, float]], str]:
    """Probe the environment; return what each behaviour's rows tell, and why nothing was probed."""
    if config.environment_kind.apart or config.replay is not None:
        return {}, "it is a game of its own, or a recording"
    try:
        facts = probe(config, "headrace.pipeline.diagnosis.probes:environment_facts", str(folder), timeout_s=PROBE_S)
    except ProbeError as error:
        return {}, str(error)
    behaviors: dict[str, dict[str, float]] = {}
    for behavior, name, value in facts:
        behaviors.setdefault(behavior, {})[name] = value
    return behaviors, ""


def before_run(config: RunConfig) -> tuple[list[Finding], list[str]]:
    """Return what random play and the settings show before a run: findings, and a line for each behaviour."""
    facts, why_not = _facts(config)
    findings, lines = list[Finding](), [f"not probed: the environment: {why_not}"] if why_not else []
    rules = load_rules(config)
    for name, own in facts.items():
        settings = config.known_settings(name)
        if settings is None or not settings.learns:
            continue
        evidence = Evidence(name, {fact: [(0, 0.0, value)] for fact, value in own.items()}, settings, config)
        if (found := diagnose(evidence, rules)) is not None:
            findings.append(found)
        said = {
            "return {:.4g}": own.get("Probe/Random Return"),
            "{:.0f} steps an episode": own.get("Data/Median Episode Length"),
            "{:.0%} of the episodes ended by the task": own.get("Data/Terminated Episodes"),
            "a reward in {:.0%} of the steps": own.get("Data/Rewarded Steps"),
            "rewards ± {:.3g}": own.get("Data/Reward Deviation"),
            "observations ± {:.3g} at most": own.get("Data/Observation Scale"),
            "{:.0f} gradient steps planned": planned_gradient_steps(evidence),
        }
        known = ", ".join(words.format(value) for words, value in said.items() if value is not None)
        lines.append(f"{name} under random play: {known}")
    return findings, lines


def diagnose_runs(folders: Sequence[Path], as_json: bool, probes: bool = True) -> str:
    """Return the findings about runs as text, or as JSON.

    Raises:
        RunFolderError: if a folder has no statistics.
    """
    diagnoses = [Diagnosis(folder, probes) for folder in folders]
    findings = [finding for one in diagnoses for finding in one.findings] + [*_between_runs(diagnoses)]
    if as_json:
        return json.dumps([finding.plain() for finding in findings], indent=1)
    lines: list[str] = []
    for one in diagnoses:
        lines.append(f"{one.folder}:")
        lines += [f"  {line}" for line in _returns(one)]
        lines += [f"  {finding.severity}: {finding}" for finding in one.findings] or ["  nothing found"]
        lines.append(f"  looked at: {'; '.join(one.looked_at)}")
    lines += [f"{finding.severity}: {finding}" for finding in _between_runs(diagnoses)]
    return "\n".join(lines)


def _configuration(folder: Path) -> RunConfig | None:
    try:
        return kept_configuration(folder)
    except (RunFolderError, ConfigError):
        if any(folder.glob("**/events.out.tfevents.*")):
            return None
        raise


def _last_step(curves: dict[str, list[Point]]) -> int:
    return max((points[-1][0] for points in curves.values() if points), default=0)


def _read_csv(path: Path) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step, at = int(row.pop("step")), float(row.pop("time"))
            for name, value in row.items():
                if value:
                    curves.setdefault(name, []).append((step, at, float(value)))
    return curves


def _curves_of_others(folder: Path) -> dict[str, list[Point]]:
    """Return the statistics of Stable-Baselines3's or CleanRL's event files, by our names."""
    curves: dict[str, list[Point]] = {}
    for history in read_other_logs(folder).values():
        for name, points in history.curves(OTHER).items():
            curves.setdefault(name, []).extend(points)
    if not curves:
        raise RunFolderError(
            f"{folder} has event files, but none with statistics of Headrace, Stable-Baselines3 or CleanRL"
        )
    return curves


def _returns(one: Diagnosis) -> Iterator[str]:
    """Yield each behaviour's return beside that of random play and of its own evaluation."""
    for evidence in one.evidence:
        values = {
            "first": evidence.early(RETURN),
            "last": evidence.late(RETURN, 0.1),
            "random play": evidence.last("Probe/Random Return"),
            "evaluation": evidence.late("Evaluation/Cumulative Reward", 0.1),
        }
        known = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        if known:
            yield f"{evidence.behavior}: mean return: {known}"


def _between_runs(diagnoses: Sequence[Diagnosis]) -> Iterator[Finding]:
    """Yield a finding where runs of the same configuration end with very different returns."""
    if len(diagnoses) < 2:
        return
    names = {evidence.behavior for one in diagnoses for evidence in one.evidence}
    for name in sorted(names):
        runs = [evidence for one in diagnoses for evidence in one.evidence if evidence.behavior == name]
        known = [one for one in runs if one.effect is not None and one.settings == runs[0].settings]
        effects = [one.effect or 0.0 for one in known]
        if len(known) > 1 and max(effects) > 1.0 > 2 * max(0.0, min(effects)):
            last = [one.late(RETURN, 0.1) or 0.0 for one in known]
            step = max(one.step for one in known)
            normal = f"runs of one configuration that end alike (mean {fmean(last):.3g} ± {pstdev(last):.2g})"
            cure = "compare several seeds before you believe one, and lower learning_rate or collect more per update"
            yield Finding(name, "warning", "seed-luck", RETURN, min(last), step, normal, cure)
