"""The options that set keys of the file, as one table: flag, keys, purpose.

Parser, overrides and the page about the command line follow it. The default of an option is the file's value, or the
key's own default.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import EACH, Override

_OPTIONAL = ("environment", "default_settings")
"""Sections that a file may lack: an option does not create them."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line."""

    flag: str
    keys: tuple[str, ...]
    """Dotted keys of the file that it sets; all of them get its value."""
    text: str
    """Its purpose, for `--help`."""
    metavar: str = ""
    """Name of its value; empty for a switch."""
    kind: type = str
    nargs: str | None = None
    value: Any = True
    """The value of a switch."""

    @property
    def name(self) -> str:
        """The attribute in which argparse keeps it."""
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Add the option to argparse."""
        if not self.metavar:
            group.add_argument(self.flag, action="store_true", default=None, help=self.text)
        elif self.nargs == "?":  # without its value it is empty
            group.add_argument(self.flag, metavar=self.metavar, nargs=self.nargs, const="", help=self.text)
        elif self.nargs is None:
            group.add_argument(self.flag, metavar=self.metavar, type=self.kind, help=self.text)
        else:
            group.add_argument(self.flag, metavar=self.metavar, nargs=self.nargs, help=self.text)

    def overrides(self, given: Any) -> Iterator[Override]:
        """Return the overrides that the option with this value means."""
        named = self.flag
        if self.metavar:
            named += f" {' '.join(given) if isinstance(given, list) else given}".rstrip()
        for key in self.keys:
            path = tuple(key.split("."))
            yield Override(named, path, given if self.metavar else self.value, optional=path[0] in _OPTIONAL)


def each_behavior(key: str) -> tuple[str, ...]:
    """Return the keys that set a value of all behaviours, listed or not."""
    return (f"behaviors.{EACH}.{key}", f"default_settings.{key}")


OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "the run": (
        Option(
            "--run-id",
            ("checkpoint_settings.run_id",),
            "name of the run and of its folder in the results (default: the file's, or ppo)",
            "ID",
        ),
        Option("--resume", ("checkpoint_settings.resume",), "resume from the run's last checkpoint"),
        Option("--force", ("checkpoint_settings.force",), "archive a run of the same name and start over"),
        Option(
            "--initialize-from",
            ("checkpoint_settings.initialize_from",),
            "start, at step 0, with what another run has learned",
            "ID",
        ),
        Option(
            "--inference",
            ("checkpoint_settings.inference",),
            "play with the run's trained policies, until Ctrl-C or --episodes, and print their scores",
        ),
        Option(
            "--episodes",
            ("inference.episodes",),
            "end --inference after N of each behaviour and team; games a pair of --tournament",
            "N",
            int,
        ),
        Option("--video", ("inference.video",), "with --inference: film each episode (3 unless --episodes)", "DIR"),
        Option("--watch", ("inference.watch",), "with --inference: open the environment's own window"),
        Option(
            "--deterministic",
            each_behavior("network_settings.deterministic"),
            "act by the mean or the most likely action instead of drawing one",
        ),
        Option(
            "--seed",
            ("env_settings.seed",),
            "seed of all chance in the run (default: the file's; -1: random)",
            "N",
            int,
        ),
        Option("--torch-device", ("torch_settings.device",), "where trainers compute: cpu, cuda, cuda:1, …", "DEVICE"),
        Option("--results-dir", ("checkpoint_settings.results_dir",), "where runs are kept (default: results)", "DIR"),
        Option("--debug", ("debug",), "log in detail, and show what Unity executables print"),
    ),
    "environments": (
        Option(
            "--env",
            ("env_settings.env_path",),
            "executable of a game of Unity or Godot; without it, the editor is waited for",
            "PATH",
        ),
        Option(
            "--num-envs",
            ("env_settings.num_envs", "environment.num_envs"),
            "Unity executables, or environment instances per actor",
            "N",
            int,
        ),
        Option("--num-areas", ("env_settings.num_areas",), "training areas in each Unity environment", "N", int),
        Option("--base-port", ("env_settings.base_port",), "first port towards executables", "PORT", int),
        Option(
            "--timeout-wait",
            ("env_settings.timeout_wait",),
            "seconds that an environment may take to start or answer",
            "S",
            int,
        ),
        Option(
            "--max-lifetime-restarts",
            ("env_settings.max_lifetime_restarts",),
            "restarts of a crashed environment in all; -1: without limit",
            "N",
            int,
        ),
        Option(
            "--restarts-rate-limit-n",
            ("env_settings.restarts_rate_limit_n",),
            "restarts within the period of that limit; -1: without limit",
            "N",
            int,
        ),
        Option(
            "--restarts-rate-limit-period-s",
            ("env_settings.restarts_rate_limit_period_s",),
            "that period, in seconds",
            "S",
            int,
        ),
        Option(
            "--env-args",
            ("env_settings.env_args",),
            "everything behind it goes to the Unity executable, so it comes last",
            "…",
            nargs=argparse.REMAINDER,
        ),
    ),
    "the Unity engine": (
        Option("--width", ("engine_settings.width",), "width of the window, in pixels", "N", int),
        Option("--height", ("engine_settings.height",), "its height", "N", int),
        Option("--quality-level", ("engine_settings.quality_level",), "quality level of the Unity project", "N", int),
        Option("--time-scale", ("engine_settings.time_scale",), "speed of the game; 1 is real time", "X", float),
        Option(
            "--target-frame-rate",
            ("engine_settings.target_frame_rate",),
            "frames per second to aim at; -1: as many as can be",
            "N",
            int,
        ),
        Option(
            "--capture-frame-rate", ("engine_settings.capture_frame_rate",), "frames per second of game time", "N", int
        ),
        Option("--no-graphics", ("engine_settings.no_graphics",), "run executables without a window"),
        Option(
            "--no-graphics-monitor", ("engine_settings.no_graphics_monitor",), "run all but the first without a window"
        ),
    ),
    "the pipeline": (
        Option(
            "--record",
            ("record.edges",),
            "record what reaches the trainers, under <run>/streams/",
            value=["trainer"],
        ),
        Option(
            "--monitor",
            ("monitor.listen",),
            "serve a live page of the run (default: this machine alone, from port 8470 on)",
            "HOST:PORT",
            nargs="?",
        ),
        Option("--monitor-control", ("monitor.control",), "the page may pause, save, stop and change hyperparameters"),
        Option("--replay", ("replay.streams",), "learn from recorded streams instead of acting", "STREAM", nargs="+"),
    ),
}
"""The options by their heading in `--help`."""


def current_overrides(asked: argparse.Namespace) -> list[Override]:
    """Return the overrides that the given options mean."""
    options = [option for group in OPTIONS.values() for option in group]
    given = [(option, getattr(asked, option.name)) for option in options]
    return [each for option, value in given if value is not None for each in option.overrides(value)]
