"""`--diagnose`: why finished or running runs do not learn, from their folders, with probes; and `--validate`'s part."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from headrace.config import ConfigError, RunConfig
from headrace.pipeline.common.errors import RunError, RunFolderError
from headrace.pipeline.common.process import lacks_torch
from headrace.pipeline.diagnosis.rules import RETURN, Evidence, Finding, diagnose, load_rules
from headrace.pipeline.main.run_shape import ProbeError, probe
from headrace.pipeline.reporting.history import History, Point, read_events
from headrace.pipeline.reporting.other_logs import OTHER, read_other_logs
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.run_folder.resuming import kept_configuration


class Diagnosis(NamedTuple):
    """What is known about one run: at most one finding for each behaviour, and lines about what was looked at."""

    folder: Path
    evidence: list[Evidence]
    findings: list[Finding]
    looked_at: list[str]


def diagnose_run(folder: Path, probes: bool) -> Diagnosis:
    """Return the findings about a run, or about event files of Stable-Baselines3 or CleanRL.

    Raises:
        RunFolderError: if the folder has no statistics.
        RunError: if one of the user's rules can't be loaded.
    """
    config = None
    try:
        config = kept_configuration(folder)
    except (RunFolderError, ConfigError):
        if not any(folder.glob("**/events.out.tfevents.*")):
            raise
    if config is None:
        logs = read_other_logs(folder)
        evidence = [Evidence(log.name, one.curves(OTHER), ended=True) for log, one in logs.items()]
        findings, lines = [one for run in evidence if (one := diagnose(run, []))], ["settings and rows are unknown"]
    else:
        read_events(folder, config.behaviors, history := History())
        curves = {name: history.curves(name) for name in history.categories()}
        evidence, findings, lines = judged(config, curves, folder, probes)
    if not evidence:
        raise RunFolderError(f"{folder} has no statistics of a behaviour that learns, under any library's names")
    read = [f"{run.behavior}: {len(run.curves)} statistics up to step {run.step}" for run in evidence]
    return Diagnosis(folder, evidence, findings, read + lines)


def judged(
    config: RunConfig, curves: Mapping[str, Mapping[str, list[Point]]], folder: Path | None, probes: bool
) -> tuple[list[Evidence], list[Finding], list[str]]:
    """Return the evidence, the findings, the errors first, and lines about the probes.

    There is no folder before a run, whose learner is not probed then.

    Raises:
        RunError: if one of the user's rules can't be loaded.
    """
    facts, lines = defaultdict[str, dict[str, float]](dict), list[str]()
    if probes and folder and (config.environment_kind.apart or config.replay is not None):
        lines.append("not probed: the environment is a game of its own, or a recording")
    elif probes:
        function = "headrace.pipeline.diagnosis.probes:facts_about"
        try:
            for behavior, name, value in probe(config, function, str(folder or ""), timeout_s=90.0):
                if value is None:
                    lines.append(f"{behavior}: {name}")
                else:
                    facts[behavior][name] = value
        except ProbeError as error:
            lines.append(f"not probed: {lacks_torch('a probe') or error}")
    evidence = list[Evidence]()
    for behavior in dict.fromkeys([*curves, *([] if folder else facts)]):
        settings, own = config.known_settings(behavior), curves.get(behavior, {})
        if behavior != PIPELINE and settings is not None and settings.learns:
            probed = {name: [(0, 0.0, value), *own.get(name, ())] for name, value in facts[behavior].items()}
            evidence.append(Evidence(behavior, {**own, **probed}, settings, config, ended=folder is not None))
    rules, mistakes = load_rules(config)
    if mistakes:
        raise RunError(str(mistakes[0])) from mistakes[0]
    found = [one for run in evidence if (one := diagnose(run, rules)) is not None]
    return evidence, sorted(found, key=lambda finding: finding.severity), lines


def diagnose_runs(folders: Sequence[Path], as_json: bool, probes: bool = True) -> str:
    """Return the findings about runs as text, or as JSON.

    Raises:
        RunFolderError: if a folder has no statistics.
    """
    diagnoses = [diagnose_run(folder, probes) for folder in folders]
    between = [*_between_runs(diagnoses)]
    if as_json:
        found = [(one.folder, finding) for one in diagnoses for finding in one.findings] + between
        return json.dumps([{"run": str(folder), **finding.plain()} for folder, finding in found], indent=1)
    lines: list[str] = []
    for one in diagnoses:
        lines.append(f"{one.folder}:")
        for run in one.evidence:
            first, last, random = run.early(RETURN), run.late(RETURN, 0.1), run.last("Probe/Random Return")
            evaluated = run.late("Evaluation/Cumulative Reward", 0.1)
            values = {"first": first, "last": last, "random play": random, "evaluation": evaluated}
            known = [f"{name} {value:.4g}" for name, value in values.items() if not isnan(value)]
            lines += [f"  {run.behavior}: mean return: {', '.join(known)}"] if known else []
        lines += [f"  {finding.severity}: {finding}" for finding in one.findings] or ["  nothing found"]
        lines.append(f"  looked at: {'; '.join(one.looked_at)}")
    lines += [f"{finding.severity}: {finding}" for _, finding in between]
    return "\n".join(lines)


def _between_runs(diagnoses: Sequence[Diagnosis]) -> Iterator[tuple[Path, Finding]]:
    """Yield the worst run's folder and a finding where runs of one configuration end with very different returns."""
    for name in sorted({run.behavior for one in diagnoses for run in one.evidence}):
        runs = [(run.effect, one.folder, run) for one in diagnoses for run in one.evidence if run.behavior == name]
        alike = [one for one in runs if one[2].settings == runs[0][2].settings and not isnan(one[0])]
        alike.sort(key=lambda one: one[0])
        if len(alike) > 1 and alike[-1][0] > 1.0 > 2 * alike[0][0]:
            last = [run.late(RETURN, 0.1) for _, _, run in alike]
            normal = f"runs of one configuration that end alike (mean {fmean(last):.3g})"
            cure = "compare several seeds before you believe one, and lower learning_rate or collect more per update"
            step = max(run.step for _, _, run in alike)
            yield alike[0][1], Finding(name, "warning", "seed-luck", RETURN, last[0], step, normal, cure)
