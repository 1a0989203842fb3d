"""Plots reward, rating and losses over the steps, for one run or several, with matplotlib."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.common.daemon_threads import answered
from headrace.pipeline.reporting.console import ELO, GROUP_REWARD, HELD_OUT, REWARD
from headrace.pipeline.reporting.history import History, read_events
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.reporting.time_shares import bottleneck_of_runs
from headrace.pipeline.run_folder.atomic_files import write_atomic
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.stages.errors import describe_error

log = logging.getLogger(__name__)

PICTURE = "curves.png"
"""Name of the plot's file in a run's folder."""
FEWEST_POINTS = 5
"""Minimum number of points that the longest curve must have for a plot at the end of a run."""

_EVALUATED = "Evaluation/Cumulative Reward"
_FIRST = (REWARD, GROUP_REWARD, HELD_OUT, _EVALUATED, ELO, "Environment/Episode Length")
_PANELS_A_ROW, _PANEL_INCHES = 3, (4.2, 2.9)
_LETTERS_A_PANEL, _MOST_FOOTERS = 60, 6
_OWN_TO_EACH_RUN = ("checkpoint_settings", "env_settings.seed", "monitor", "debug")
"""Keys that may differ between runs of the same configuration."""

Curves = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Curves, keyed by behaviour and statistic; each curve has the columns `steps` and `values`."""


@dataclass(frozen=True)
class PlottedRun:
    """A run's data for a plot."""

    name: str
    settings: Mapping[str, Any]
    """The run's configuration, without the keys that may differ between runs of the same configuration."""
    curves: Curves


def read_run(folder: Path) -> PlottedRun:
    """Read a run's settings and curves from its folder."""
    settings, history = read_configuration(folder), History()
    read_events(folder, settings.get("behaviors") or {}, history)
    return PlottedRun(folder.resolve().name, shared_settings(settings), history.plain())


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that may differ between its runs, such as the seed."""
    shared = dict(settings)
    for key in _OWN_TO_EACH_RUN:
        section, _, inner = key.partition(".")
        if inner:
            shared[section] = {**(shared.get(section) or {}), inner: None}
        else:
            shared.pop(section, None)
    return shared


def grouped(each_settings: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Group run indices by configuration; each run whose configuration is unknown gets a separate group."""
    groups: list[list[int]] = []
    for place, settings in enumerate(each_settings):
        for group in groups:
            if each_settings[group[0]] == settings and settings.get("behaviors"):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def draw_runs(runs: Sequence[PlottedRun]) -> bytes | None:
    """Draw runs as a PNG with a panel for each behaviour and statistic; return None if there are no curves.

    Runs with the same configuration but different seeds are drawn as mean and standard deviation, over the steps that
    all of them cover.
    """
    from matplotlib.figure import Figure

    groups = _grouped(runs)
    panels = [(behavior, name) for behavior, names in _panels(runs).items() for name in names]
    if not panels:
        return None
    rows = -(-len(panels) // _PANELS_A_ROW)
    columns = min(len(panels), _PANELS_A_ROW)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1] + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    several = len({behavior for behavior, _ in panels}) > 1
    for (behavior, name), axis in zip(panels, axes, strict=False):
        for number, (label, members) in enumerate(groups.items()):
            _draw_group(axis, [run.curves.get(behavior, {}).get(name) for run in members], label, f"C{number}")
        axis.set_title(f"{behavior}: {_title(name)}" if several else _title(name), fontsize=10)
        axis.grid(alpha=0.3)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
        axis.tick_params(labelsize=8)
    for axis in list(axes):  # grid cells without a panel
        axis.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    figure.supxlabel("\n".join(["steps", *_footer(groups, columns * _LETTERS_A_PANEL)]), fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _footer(groups: Mapping[str, Sequence[PlottedRun]], letters: int) -> list[str]:
    """Return lines that describe the bottleneck of each of the first few groups of runs."""
    lines = []
    for label, members in [*groups.items()][:_MOST_FOOTERS]:
        blocks = members[0].settings.get("behaviors")
        cause = bottleneck_of_runs(*(run.curves.get(PIPELINE, {}) for run in members), blocks=blocks)
        if cause is not None:
            lines += ["", *wrap(f"{label}: {cause.text}" if len(groups) > 1 else cause.text, letters)]
    return lines


def write_run_picture(folder: Path) -> None:
    """Plot a finished run's curves into its folder, if matplotlib is installed and curves exist; never raise."""
    try:
        if find_spec("matplotlib") is None:
            return
        run = answered(folder, read_run, folder)
        longest = max((len(curve["steps"]) for _, curves in _behaviors(run) for curve in curves.values()), default=0)
        picture = draw_runs([run]) if longest >= FEWEST_POINTS else None
        if picture is not None:
            write_atomic(folder / PICTURE, picture)
    except Exception as error:  # a plot that can't be drawn must not fail the run
        log.warning("the curves of %s could not be drawn: %s", folder, describe_error(error))


def _behaviors(run: PlottedRun) -> Iterable[tuple[str, Mapping[str, Mapping[str, list[float]]]]]:
    return ((name, curves) for name, curves in run.curves.items() if name != PIPELINE)


def _panels(runs: Iterable[PlottedRun]) -> dict[str, list[str]]:
    """Return the statistics that get a panel, keyed by behaviour and in plotting order."""
    there: dict[str, set[str]] = {}
    for run in runs:
        for behavior, curves in _behaviors(run):
            there.setdefault(behavior, set()).update(curves)
    return {
        behavior: [*(name for name in _FIRST if name in names), *sorted(n for n in names if n.startswith("Losses/"))]
        for behavior, names in sorted(there.items())
    }


def _title(name: str) -> str:
    named = {REWARD: "Reward", GROUP_REWARD: "Group reward", _EVALUATED: "Evaluation reward", ELO: "Rating (ELO)"}
    return named.get(name, name.rpartition("/")[2])


def _grouped(runs: Sequence[PlottedRun]) -> dict[str, list[PlottedRun]]:
    """Group runs by configuration; the keys are the groups' labels."""
    groups = [[runs[place] for place in places] for places in grouped([run.settings for run in runs])]
    return {", ".join(run.name for run in group) + ": mean ± SD" * (len(group) > 1): group for group in groups}


def _draw_group(axis: Any, curves: Sequence[Mapping[str, list[float]] | None], label: str, colour: str) -> None:
    there = [curve for curve in curves if curve is not None and curve["steps"]]
    if not there:
        return
    steps, values = _over_common_steps(there)
    axis.plot(steps, values.mean(0), label=label, color=colour, linewidth=1.3, marker="o" if len(steps) == 1 else None)
    if len(there) > 1:
        mean, spread = values.mean(0), values.std(0, ddof=1)
        axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)


def _over_common_steps(curves: Sequence[Mapping[str, list[float]]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Resample curves at the steps of any curve within their common range; return steps [S] and values [curves, S]."""
    first, last = max(curve["steps"][0] for curve in curves), min(curve["steps"][-1] for curve in curves)
    steps = np.unique(np.concatenate([np.asarray(curve["steps"], float) for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    return steps, np.stack([np.interp(steps, curve["steps"], curve["values"]) for curve in curves])
