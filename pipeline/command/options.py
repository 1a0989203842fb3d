"""The table of options that override configuration keys, and the options of older ML-Agents versions.

The parser, the overrides and the documentation of the command line are derived from the table. If an option is omitted,
the file's value applies, or else the key's default. An old option that still has a meaning works, with a warning that
shows the current spelling. Any other old option is refused, because silently training something different would cost
the user more than an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config import EACH, EnvSettings, Override
from headrace.config.paths import user_path

_OPTIONAL = ("environment", "default_settings")
"""Sections that the file may lack. An option for a missing section does not create the section."""


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option."""

    flag: str
    keys: str
    """Dotted config keys that the option sets, separated by spaces.

    A key that ends with a dot is completed with the option's name.
    """
    text: str
    """Help text, for `--help`."""
    metavar: str = ""
    """Placeholder for the value in `--help`; empty for a switch."""
    kind: Callable[[str], object] = str
    nargs: str | None = None
    value: Any = True
    """The value that a switch sets."""

    @property
    def name(self) -> str:
        """Name of the argparse attribute that contains the option's value."""
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Add the option to an argparse group."""
        if not self.metavar:
            group.add_argument(self.flag, action="store_true", default=None, help=self.text)
        elif self.nargs == "?":  # empty if given without a value
            group.add_argument(self.flag, metavar=self.metavar, nargs=self.nargs, const="", help=self.text)
        elif self.nargs is None:
            group.add_argument(self.flag, metavar=self.metavar, type=self.kind, help=self.text)
        else:
            group.add_argument(self.flag, metavar=self.metavar, nargs=self.nargs, help=self.text)

    def overrides(self, value: Any) -> Iterator[Override]:
        """Yield the overrides that the option makes with this value."""
        named = self.flag
        if self.metavar:
            named += f" {' '.join(value) if isinstance(value, list) else value}".rstrip()
        for key in self.keys.split():
            path = tuple((key + self.name if key.endswith(".") else key).split("."))
            yield Override(named, path, value if self.metavar else self.value, optional=path[0] in _OPTIONAL)


def each_behavior(key: str) -> str:
    """Return the keys that set a value for all behaviours, including those that the file does not list."""
    return f"behaviors.{EACH}.{key} default_settings.{key}"


OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "the run": (
        Option(
            "--run-id",
            "checkpoint_settings.",
            "name of the run, and of its folder under --results-dir (default: the file's, or ppo)",
            "ID",
        ),
        Option("--resume", "checkpoint_settings.", "resume from the run's last checkpoint"),
        Option("--force", "checkpoint_settings.", "archive any existing run of the same name and start over"),
        Option("--initialize-from", "checkpoint_settings.", "start at step 0 from the policies of another run", "ID"),
        Option(
            "--inference",
            "checkpoint_settings.",
            "play with the run's trained policies, until Ctrl-C or --episodes, and print their scores",
        ),
        Option(
            "--episodes",
            "inference.",
            "end --inference after N episodes per behaviour and team; with --tournament: games per pair",
            "N",
            int,
        ),
        Option(
            "--video",
            "inference.",
            "with --inference: record a video of each episode (3 episodes unless --episodes is given)",
            "DIR",
        ),
        Option("--watch", "inference.", "with --inference: open the environment's own window"),
        Option(
            "--deterministic",
            each_behavior("network_settings.deterministic"),
            "take the mean or the most likely action instead of sampling",
        ),
        Option("--seed", "env_settings.", "random seed of the run (default: the file's; -1: a random one)", "N", int),
        Option(
            "--torch-device", "torch_settings.device", "device that the trainers use: cpu, cuda, cuda:1, …", "DEVICE"
        ),
        Option("--results-dir", "checkpoint_settings.", "folder for all runs (default: results)", "DIR", user_path),
        Option("--debug", "debug", "log in detail, and show what Unity executables print"),
    ),
    "environments": (
        Option(
            "--env",
            "env_settings.env_path",
            "executable of a Unity or Godot game; without it, the run waits for the editor",
            "PATH",
            user_path,
        ),
        Option(
            "--num-envs",
            "env_settings.num_envs environment.num_envs",
            "number of Unity executables, or of environment instances per actor",
            "N",
            int,
        ),
        Option("--num-areas", "env_settings.", "number of training areas in each Unity environment", "N", int),
        Option("--base-port", "env_settings.", "first port that executables use", "PORT", int),
        Option(
            "--timeout-wait", "env_settings.", "how many seconds an environment may take to start or respond", "S", int
        ),
        Option(
            "--max-lifetime-restarts",
            "env_settings.",
            "how many times crashed environments may be restarted in total; -1: unlimited",
            "N",
            int,
        ),
        Option(
            "--restarts-rate-limit-n",
            "env_settings.",
            "how many of these restarts may fall within --restarts-rate-limit-period-s; -1: unlimited",
            "N",
            int,
        ),
        Option(
            "--restarts-rate-limit-period-s", "env_settings.", "period of --restarts-rate-limit-n, in seconds", "S", int
        ),
        Option(
            "--env-args",
            "env_settings.",
            "pass everything after this option to the Unity executable; put it last",
            "…",
            nargs=argparse.REMAINDER,
        ),
    ),
    "the Unity engine": (
        Option("--width", "engine_settings.", "width of the window, in pixels", "N", int),
        Option("--height", "engine_settings.", "height of the window, in pixels", "N", int),
        Option("--quality-level", "engine_settings.", "quality level of the Unity project", "N", int),
        Option("--time-scale", "engine_settings.", "speed of the game; 1 is real time", "X", float),
        Option("--target-frame-rate", "engine_settings.", "target frames per second; -1: unlimited", "N", int),
        Option("--capture-frame-rate", "engine_settings.", "frames per second of game time", "N", int),
        Option("--no-graphics", "engine_settings.", "run executables without a window"),
        Option("--no-graphics-monitor", "engine_settings.", "run all executables except the first without a window"),
    ),
    "the pipeline": (
        Option("--record", "record.edges", "record what the trainers receive, under <run>/streams/", value=["trainer"]),
        Option(
            "--monitor",
            "monitor.listen",
            "serve a live page of the run (default: only for this machine, on the first free port from 8470)",
            "HOST:PORT",
            nargs="?",
        ),
        Option(
            "--monitor-control",
            "monitor.control",
            "let the page pause, save and stop the run and change its hyperparameters",
        ),
        Option("--replay", "replay.streams", "learn from recorded streams instead of acting", "STREAM", nargs="+"),
    ),
}
"""All options, grouped by their heading in `--help`."""


def current_overrides(args: argparse.Namespace) -> list[Override]:
    """Return the overrides that the given options make."""
    options = [option for group in OPTIONS.values() for option in group]
    values = [(option, getattr(args, option.name)) for option in options]
    return [each for option, value in values if value is not None for each in option.overrides(value)]


_OLD = "is an option from older versions of ML-Agents"


@dataclass(frozen=True, slots=True)
class Translation:
    """What an old option means now."""

    overrides: tuple[Override, ...] = ()
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """Reasons why the command can't run, with the current spelling."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of current options, keyed by argparse attribute."""
    old_files: Mapping[str, Any] = field(default_factory=dict)
    """Old files to convert together with the configuration file, as keyword arguments for `load_config`."""


def _warn(text: str) -> Translation:
    return Translation(warnings=(text,))


def _refuse(text: str) -> Translation:
    return Translation(refusals=(text,))


def _set_keys(flag: str, keys: str, value: object, instead: str) -> Translation:
    """Translate an option that sets these keys; `instead` is its current spelling."""
    option = Option(flag, keys, "", metavar="VALUE" if not isinstance(value, bool) else "", value=value)
    warning = f"{flag} {_OLD}; Headrace treats it as {instead}"
    return Translation(tuple(option.overrides(value)), (warning,))


def _superseded(flag: str, today: str) -> Translation:
    return _warn(f"{flag} {_OLD} and has no effect together with {today}")


Translate = Callable[[argparse.Namespace, Any], Translation]
"""Function that translates an old option, given all arguments and the option's value."""


def _needless(text: str) -> Translate:
    return lambda args, value: _warn(text)


def _load(args: argparse.Namespace, value: Any) -> Translation:
    instead = "--resume"
    if not args.train and not args.inference:
        instead += " (older versions only played without --train: add --inference for that)"
    return _set_keys("--load", "checkpoint_settings.resume", True, instead)


def _slow(args: argparse.Namespace, value: Any) -> Translation:
    if args.time_scale is not None:
        return _superseded("--slow", f"--time-scale {args.time_scale:g}")
    return _set_keys("--slow", "engine_settings.time_scale", 1.0, "--time-scale 1")


def _key_of_behaviors(flag: str, key: str) -> Translate:
    return lambda args, value: _set_keys(flag, each_behavior(key), value, f"'{key}: {value}' in each behaviour")


def _worker_id(args: argparse.Namespace, value: int) -> Translation:
    port = value + (args.base_port if args.base_port is not None else EnvSettings().base_port)
    warning = f"--worker-id {_OLD}; Headrace treats it as --base-port {port}"
    return Translation(warnings=(warning,), replaced={"base_port": port})


def _cpu(args: argparse.Namespace, value: Any) -> Translation:
    if args.torch_device is not None:
        return _superseded("--cpu", f"--torch-device {args.torch_device}")
    return _set_keys("--cpu", "torch_settings.device", "cpu", "--torch-device cpu")


def _multi_gpu(args: argparse.Namespace, value: Any) -> Translation:
    return _refuse(
        "--multi-gpu: a trainer uses only one device; omit --multi-gpu, or name a device: --torch-device cuda:1"
    )


def _num_runs(args: argparse.Namespace, value: int) -> Translation:
    if value == 1:
        return _warn(f"--num-runs {_OLD} and no longer needed, because each command starts one run")
    run = args.run_id or "ppo"
    apart = EnvSettings().base_port + (args.num_envs or 1)
    return _refuse(
        f"--num-runs {value}: a command starts only one run. Start each run separately, with its own ports: --run-id "
        f"{run}-0, --run-id {run}-1 --base-port {apart}, and so on"
    )


def _docker_target_name(args: argparse.Namespace, value: str) -> Translation:
    paths = [f"/{value}/{path}" for path in args.paths] or ["the configuration file"]
    return _refuse(
        f"--docker-target-name {value}: Headrace uses paths as given. Write them in full: {' '.join(paths)} "
        f"--results-dir /{value}/results"
    )


def _old_file(flag: str, key: str) -> Translate:
    def translate(args: argparse.Namespace, value: Any) -> Translation:
        warning = (
            f"{flag} {_OLD}; the contents of its file now belong in the configuration file, under "
            f"environment_parameters ('{flag} {value} --convert FILE' converts them)"
        )
        return Translation(warnings=(warning,), old_files={key: value})

    return translate


def _lesson(args: argparse.Namespace, value: int) -> Translation:
    if value < 0:
        return _refuse(f"--lesson {value}: expected a lesson number, counting from 0")
    warning = f"--lesson {_OLD}; remove the earlier lessons from environment_parameters.<parameter>.curriculum instead"
    return Translation(warnings=(warning,), old_files={"lesson": value})


_NO_TRAIN = f"--train {_OLD} and no longer needed; to play without learning, use --inference"
_NO_FRAMEWORK = f"{{}} {_OLD} and has no effect; trainers use PyTorch"

OLD_OPTIONS: tuple[tuple[Option, Translate], ...] = (
    (Option("--train", "", "no effect: training is the default"), _needless(_NO_TRAIN)),
    (Option("--load", "", "--resume"), _load),
    (Option("--slow", "", "--time-scale 1"), _slow),
    (
        Option("--keep-checkpoints", "", "keep_checkpoints in each behaviour", "N", int),
        _key_of_behaviors("--keep-checkpoints", "keep_checkpoints"),
    ),
    (
        Option("--save-freq", "", "checkpoint_interval in each behaviour", "N", int),
        _key_of_behaviors("--save-freq", "checkpoint_interval"),
    ),
    (Option("--worker-id", "", "--base-port, N higher", "N", int), _worker_id),
    (Option("--cpu", "", "--torch-device cpu"), _cpu),
    (Option("--torch", "", "no effect"), _needless(_NO_FRAMEWORK.format("--torch"))),
    (Option("--tensorflow", "", "no effect"), _needless(_NO_FRAMEWORK.format("--tensorflow"))),
    (Option("--curriculum", "", "environment_parameters", "PATH", user_path), _old_file("--curriculum", "curriculum")),
    (Option("--sampler", "", "environment_parameters", "FILE", user_path), _old_file("--sampler", "sampler")),
    (Option("--lesson", "", "environment_parameters, without the earlier lessons", "N", int), _lesson),
    (Option("--num-runs", "", "only 1 is accepted", "N", int), _num_runs),
    (Option("--multi-gpu", "", "refused"), _multi_gpu),
    (Option("--docker-target-name", "", "refused", "NAME"), _docker_target_name),
)


def add_old_options(group: argparse._ArgumentGroup) -> None:
    """Add the old options to an argparse group."""
    for option, _ in OLD_OPTIONS:
        option.add_to(group)


def translations(args: argparse.Namespace) -> Iterator[Translation]:
    """Yield the translation of each old option that was given."""
    for option, translate in OLD_OPTIONS:
        value = getattr(args, option.name)
        if value is not None:
            yield translate(args, value)
