"""Plots reward, rating and losses over steps or time, for one run or several, with matplotlib."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.reporting.console import ELO, EPISODE_LENGTH, GROUP_REWARD, HELD_OUT, REWARD
from headrace.pipeline.reporting.history import History, read_events
from headrace.pipeline.reporting.other_logs import OTHER, read_other_logs
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.reporting.time_shares import bottleneck_of_runs
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.queues.disks import answered
from headrace.queues.files import write_atomic
from headrace.stages.errors import describe_error

log = logging.getLogger(__name__)

PICTURE = "curves.png"
"""Name of the plot's file in a run's folder."""
FEWEST_POINTS = 5
"""Minimum number of points that the longest curve must have for a plot at the end of a run."""

_EVALUATED = "Evaluation/Cumulative Reward"
_FIRST = (REWARD, GROUP_REWARD, HELD_OUT, _EVALUATED, ELO, EPISODE_LENGTH)
_PANELS_A_ROW, _PANEL_INCHES = 3, (4.2, 2.9)
_LETTERS_A_PANEL, _MOST_FOOTERS = 60, 6
_OWN_TO_EACH_RUN = ("checkpoint_settings", "monitor", "debug")
"""Sections that may differ between runs of the same configuration, as the seed may."""
_PLACES = 200
"""Maximum number of points of a curve that combines several seeds."""
_RESAMPLES, _INTERVAL = 1000, np.array([0.025, 0.975])
_COUNTER = re.compile(r"(__\d+)?[-_]+\d+$")
"""Numbers at the end of a log's name: Stable-Baselines3's `PPO_1`, CleanRL's `CartPole-v1__ppo__1__1700000000`."""

Curves = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Curves, keyed by behaviour and statistic; each curve has the columns `steps`, `times` and `values`."""


@dataclass(frozen=True)
class PlottedRun:
    """A run's data for a plot."""

    name: str
    settings: Mapping[str, Any]
    """The run's configuration, without the keys that may differ between runs of the same configuration."""
    curves: Curves


def read_runs(folders: Iterable[Path]) -> list[PlottedRun]:
    """Read settings and curves of runs, and of other libraries' logs in folders without a configuration."""
    found: list[tuple[Path, dict[str, Any], History]] = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        settings = read_configuration(folder)
        if logs := {} if settings else read_other_logs(folder):
            alike = {path: f"{path.parent}/{_COUNTER.sub('', path.name)}" for path in logs}  # names without the seeds
            found += [(path, {"behaviors": {alike[path]: {}}}, log) for path, log in logs.items()]
        else:
            read_events(folder, settings.get("behaviors") or {}, history := History())
            found.append((folder, shared_settings(settings), history))
    names = distinct_names([path for path, _, _ in found])
    behaviors = {name for _, _, history in found for name in history.categories()} - {PIPELINE, OTHER}
    known = {OTHER: min(behaviors)} if len(behaviors) == 1 else {}  # a log of another library names no behaviour
    return [
        PlottedRun(name, settings, {known.get(behavior, behavior): each for behavior, each in history.plain().items()})
        for name, (_, settings, history) in zip(names, found, strict=True)
    ]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, with as many parent folders as it takes to tell different folders apart."""
    parts = [folder.resolve().parts for folder in folders]
    length = next(n for n in range(1, 1000) if len({part[-n:] for part in parts}) == len({*parts}))
    return ["/".join(part[-length:]) for part in parts]


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that may differ between its runs, such as the seed."""
    shared = {key: value for key, value in settings.items() if key not in _OWN_TO_EACH_RUN}
    return {**shared, "env_settings": {**(shared.get("env_settings") or {}), "seed": None}}


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


def draw_runs(runs: Sequence[PlottedRun], over: str = "steps") -> bytes | None:
    """Draw runs over `steps` or `times` as a PNG with a panel for each behaviour and statistic; None without curves.

    Runs with the same configuration but different seeds are drawn as their interquartile mean with an interval, over
    the range that all of them cover.
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
    unit, unit_name = (60, "time (min)") if over == "times" else (1, "steps")
    for (behavior, name), axis in zip(panels, axes, strict=False):
        for number, (label, members) in enumerate(groups.items()):
            curves = [run.curves.get(behavior, {}).get(name) for run in members]
            _draw_group(axis, curves, over, unit, label=label, color=f"C{number}")
        axis.set_title(f"{behavior}: {_title(name)}" if several else _title(name), fontsize=10)
        axis.grid(alpha=0.3)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
        axis.tick_params(labelsize=8)
    for axis in list(axes):  # grid cells without a panel
        axis.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    figure.supxlabel("\n".join([unit_name, *_footer(groups, columns * _LETTERS_A_PANEL)]), fontsize=9)
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
        (run,) = answered(folder, read_runs, [folder])
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
    return {", ".join(run.name for run in group) + ": IQM, 95 % interval" * (len(group) > 1): group for group in groups}


def _draw_group(
    axis: Any, curves: Sequence[Mapping[str, list[float]] | None], over: str, unit: int, **look: str
) -> None:
    there = [curve for curve in curves if curve is not None and curve["steps"]]
    if not there:
        return
    places, values = _over_common_range(there, over)
    places /= unit
    middle = interquartile_mean(values)
    axis.plot(places, middle, **look, linewidth=1.3, marker="o" if len(places) == 1 else None)
    if len(there) > 1:
        axis.fill_between(places, *bootstrap_interval(values), color=look["color"], alpha=0.2, linewidth=0)


def _over_common_range(
    curves: Sequence[Mapping[str, list[float]]], over: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Resample curves at the places of any curve within their common range; return places [S] and values [curves, S].

    Several curves have at most `_PLACES` places.
    """
    first, last = max(curve[over][0] for curve in curves), min(curve[over][-1] for curve in curves)
    places = np.unique(np.concatenate([np.asarray(curve[over], float) for curve in curves]))
    places = places[(places >= first) & (places <= last)]
    if len(curves) > 1 and len(places) > _PLACES:
        places = places[np.linspace(0, len(places) - 1, _PLACES).astype(int)]
    return places, np.stack([np.interp(places, curve[over], curve["values"]) for curve in curves])


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of the middle half of the runs' values [..., runs, S]; of fewer than 4 runs, of all."""
    cut = values.shape[-2] // 4
    return np.asarray(np.sort(values, axis=-2)[..., cut : values.shape[-2] - cut, :].mean(-2))


def bootstrap_interval(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds [2, S] of the interquartile mean's 95 % interval, by resampling runs [runs, S] of one task.

    This is the stratified bootstrap of Agarwal et al. (arXiv 2108.13264), whose strata are tasks.
    """
    picked = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    return np.asarray(np.quantile(interquartile_mean(values[picked]), _INTERVAL, axis=0))
