"""`--diagnose`: why finished or running runs do not learn, from their folders, with probes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean, pstdev

from headrace.config import ConfigError, RunConfig
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
        for name in history.categories():
            if name != PIPELINE and (settings := config.known_settings(name)) is not None and settings.learns:
                evidence = Evidence(name, history.curves(name), settings, config, ended=True)
                self.looked_at.append(f"{name}: {len(evidence.curves)} statistics up to step {evidence.step}")
                yield evidence

    def _probe(self, config: RunConfig) -> None:
        if config.environment_kind.apart or config.replay is not None:
            self.looked_at.append("not probed: the environment: it is a game of its own, or a recording")
            return
        facts, why_not = _facts(config, self.folder)
        self.looked_at += [f"not probed to the end: {why_not}"] if why_not else []
        for evidence in self.evidence:
            own, curves = facts.get(evidence.behavior, {}), evidence.curves
            probed = {name: [(0, 0.0, value), *curves.get(name, ())] for name, value in own.items()}
            evidence.curves = {**curves, **probed}
            self.looked_at += [f"{evidence.behavior}: {line}" for line in _said(own)]


def _said(facts: Mapping[str, float]) -> Iterator[str]:
    """Yield what the probes did and saw, in words."""
    if facts:
        yield "random play, and constant actions from one seed"
    effects = [value for name, value in facts.items() if name.startswith("Probe/Effect of Component ")]
    if effects:
        ignored = [str(i) for i, value in enumerate(effects) if value < max(1e-3, 0.01 * max(effects))]
        which = f"all but {', '.join(ignored)}" if ignored else "all"
        which = "none" if len(ignored) == len(effects) else which
        constant = facts["Probe/Effect of Constant Observations"]
        yield f"each component of the observation permuted: the policy reacts to {which}"
        yield f"constant observations change its decisions by {constant:.2g}"
    fresh, critic = facts.get("Probe/Returns by a Fresh Critic"), facts.get("Probe/Returns by the Critic")
    permuted = facts.get("Probe/Returns by a Fresh Critic of Permuted Rewards")
    if fresh is not None and permuted is not None:
        yield (
            f"the recording replayed into a fresh learner: its critic explains {fresh:.0%} of later returns, and "
            f"{permuted:.0%} with permuted rewards"
        )
        if fresh < permuted + 0.1:
            yield "so the data hardly tell what pays"
        elif critic is not None:
            verdict = ": the learner is to blame, not the data" if critic < fresh / 2 else ""
            yield f"the run's own critic explains {critic:.0%} of them{verdict}"
    if (learned := facts.get("Probe/One-Step Task")) is not None:
        verdict = "learn" if learned > 0.5 else "do not learn"
        yield f"the settings {verdict} a one-step task with these spaces ({learned:.2f} of 1)"


def _facts(config: RunConfig, folder: Path | str = "") -> tuple[dict[str, dict[str, float]], str]:
    """Probe a run's environment, and its folder if there is one.

    Returns:
        What each behaviour's probes tell, and why they ended early; empty if they did not.
    """
    behaviors, why_not = dict[str, dict[str, float]](), ""
    with tempfile.TemporaryDirectory() as target:
        path = Path(target) / "facts"
        path.touch()
        function = "headrace.pipeline.diagnosis.probes:write_facts"
        try:
            probe(config, function, str(path), str(folder), timeout_s=PROBE_S)
        except ProbeError as error:
            why_not = str(error)
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # else the process was killed while it wrote the line
                behavior, name, value = json.loads(line)
                behaviors.setdefault(behavior, {})[name] = value
    return behaviors, why_not


def before_run(config: RunConfig, plays: bool) -> tuple[list[Finding], list[str]]:
    """Return what the settings show before a run, and random play: findings, and lines about what was seen.

    Args:
        config: the run's configuration.
        plays: whether the environment may be started.
    """
    facts, why_not = _facts(config) if plays else ({}, "")
    findings, lines = list[Finding](), [f"not probed to the end: {why_not}"] if why_not else []
    rules = load_rules(config)
    for name in dict.fromkeys((*facts, *config.met_behaviors)):
        settings, own = config.known_settings(name), facts.get(name, {})
        if settings is None or not settings.learns:
            continue
        evidence = Evidence(name, {fact: [(0, 0.0, value)] for fact, value in own.items()}, settings, config)
        if (found := diagnose(evidence, rules)) is not None:
            findings.append(found)
        said = {
            "return {:.4g}": evidence.last("Probe/Random Return"),
            "{:.0f} steps an episode": evidence.last("Data/Median Episode Length"),
            "{:.0%} of the episodes ended by the task": evidence.last("Data/Terminated Episodes"),
            "a reward in {:.0%} of the steps": evidence.last("Data/Rewarded Steps"),
            "rewards ± {:.3g}": evidence.last("Data/Reward Deviation"),
            "observations ± {:.3g} at most": evidence.last("Data/Observation Scale"),
            "{:.0f} gradient steps planned": planned_gradient_steps(evidence),
        }
        known = ", ".join(words.format(value) for words, value in said.items() if not isnan(value))
        if own:
            lines.append(f"{name} under random play: {known}")
    return findings, lines


def diagnose_runs(folders: Sequence[Path], as_json: bool, probes: bool = True) -> str:
    """Return the findings about runs as text, or as JSON.

    Raises:
        RunFolderError: if a folder has no statistics.
    """
    diagnoses = [Diagnosis(folder, probes) for folder in folders]
    between = [*_between_runs(diagnoses)]
    if as_json:
        found = [(one.folder, finding) for one in diagnoses for finding in one.findings] + between
        return json.dumps([{"run": str(folder), **finding.plain()} for folder, finding in found], indent=1)
    lines: list[str] = []
    for one in diagnoses:
        lines.append(f"{one.folder}:")
        lines += [f"  {line}" for line in _returns(one)]
        lines += [f"  {finding.severity}: {finding}" for finding in one.findings] or ["  nothing found"]
        lines.append(f"  looked at: {'; '.join(one.looked_at)}")
    lines += [f"{finding.severity}: {finding}" for _, finding in between]
    return "\n".join(lines)


def _configuration(folder: Path) -> RunConfig | None:
    try:
        return kept_configuration(folder)
    except (RunFolderError, ConfigError):
        if any(folder.glob("**/events.out.tfevents.*")):
            return None
        raise


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
        known = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if not isnan(value))
        if known:
            yield f"{evidence.behavior}: mean return: {known}"


def _between_runs(diagnoses: Sequence[Diagnosis]) -> Iterator[tuple[Path, Finding]]:
    """Yield the worst run's folder and a finding where runs of one configuration end with very different returns."""
    for name in sorted({evidence.behavior for one in diagnoses for evidence in one.evidence}):
        runs = [(one.folder, run) for one in diagnoses for run in one.evidence if run.behavior == name]
        known = [(run.effect, folder, run) for folder, run in runs if run.settings == runs[0][1].settings]
        known = sorted((one for one in known if not isnan(one[0])), key=lambda one: one[0])
        if len(known) > 1 and known[-1][0] > 1.0 > 2 * known[0][0]:
            last = [run.late(RETURN, 0.1) for _, _, run in known]
            normal = f"runs of one configuration that end alike (mean {fmean(last):.3g} ± {pstdev(last):.2g})"
            cure = "compare several seeds before you believe one, and lower learning_rate or collect more per update"
            step = max(run.step for _, _, run in known)
            yield known[0][1], Finding(name, "warning", "seed-luck", RETURN, last[0], step, normal, cure)
