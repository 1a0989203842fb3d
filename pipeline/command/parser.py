"""The command line: its parser, and the request built from the parsed arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from headrace.config import EACH, EnvSettings, Override, RunConfig
from headrace.config.errors import suggest
from headrace.config.paths import user_path
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.output import say
from headrace.pipeline.common.process import version_of

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
        else:
            const = "" if self.nargs == "?" else None  # empty if given without a value
            group.add_argument(
                self.flag, metavar=self.metavar, nargs=self.nargs, const=const, type=self.kind, help=self.text
            )

    def given(self, value: Any) -> str:
        """Return the option with this value, as the user gave it."""
        if not self.metavar:
            return self.flag
        return f"{self.flag} {' '.join(value) if isinstance(value, list) else value}".rstrip()

    def overrides(self, value: Any) -> Iterator[Override]:
        """Yield the overrides that the option makes with this value."""
        for key in self.keys.split():
            path = tuple((key + self.name if key.endswith(".") else key).split("."))
            set_to = value if self.metavar else self.value
            yield Override(self.given(value), path, set_to, optional=path[0] in _OPTIONAL or EACH in path)


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


def _lesson(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a lesson number, counting from 0, got {text}")
    return int(text)


OLD_FILES = ("curriculum", "sampler", "lesson")
"""Names of the old options for old files, which are converted together with the configuration file."""
_IN_THE_FILE = "under environment_parameters in the configuration file (--convert FILE converts"

OLD_OPTIONS = (
    Option("--train", "", "no effect: training is the default; to play without learning, use --inference"),
    Option(
        "--load",
        "checkpoint_settings.resume",
        "now --resume (older versions only played without --train: add --inference for that)",
    ),
    Option("--slow", "engine_settings.time_scale", "now --time-scale 1", value=1.0),
    Option("--keep-checkpoints", each_behavior("keep_checkpoints"), "now keep_checkpoints in each behaviour", "N", int),
    Option("--save-freq", each_behavior("checkpoint_interval"), "now checkpoint_interval in each behaviour", "N", int),
    Option("--worker-id", "", "now --base-port, N higher", "N", int),
    Option("--cpu", "torch_settings.device", "now --torch-device cpu", value="cpu"),
    Option("--torch", "", "no effect: trainers use PyTorch"),
    Option("--tensorflow", "", "no effect: trainers use PyTorch"),
    Option("--curriculum", "", f"now {_IN_THE_FILE} its lessons)", "PATH", user_path),
    Option("--sampler", "", f"now {_IN_THE_FILE} its samplers)", "FILE", user_path),
    Option("--lesson", "", f"now {_IN_THE_FILE} --curriculum without the earlier lessons)", "N", _lesson),
    Option(
        "--num-runs",
        "",
        "only 1 is accepted: start each run separately, with its own --run-id and, for Unity, --base-port",
        "N",
        int,
    ),
    Option("--multi-gpu", "", "refused: a trainer uses only one device, such as --torch-device cuda:1"),
    Option("--docker-target-name", "", "refused: write paths in full, also for --results-dir", "NAME"),
)
"""Options from older versions of ML-Agents. Their help texts show the current form."""
REFUSED = ("--num-runs", "--multi-gpu", "--docker-target-name")
"""The old options that can't be followed, except for `--num-runs 1`."""


OURS = "run-pipeline"
ML_AGENTS = "mlagents-learn"
GODOT_RL = "gdrl"
COMMANDS = (OURS, ML_AGENTS)
"""Names of the installed command. When called by its second name, the command also prints all settings."""

ATTACHED, LAST = "--monitor", "--env-args"
"""The option whose optional value must be attached with '=', and the option that passes all later arguments to Unity.
"""

DESCRIPTION = """\
Train agents with deep reinforcement learning, as a pipeline described by one YAML file.
An option overrides the file; without the option, the file's value applies.
"""

EPILOG = """\
examples:
  {0} config/examples/volley.yaml                     train the built-in ball game by self-play
  {0} cartpole.yaml --run-id first --seed 1           train, into results/first
  {0} cartpole.yaml --run-id first --resume           resume from its last checkpoint
  {0} cartpole.yaml --run-id first --inference        play with the trained policies, don't learn
  {0} 3DBall.yaml --env Builds/3DBall --num-envs 4    train in four Unity executables
  {0} 3DBall.yaml --run-id ball                       train in the Unity Editor: press Play when prompted
  {0} cartpole.yaml --set behaviors.CartPole.hyperparameters.learning_rate=1e-3
  {0} cartpole.yaml --validate                        print what would be run, or what is wrong

Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends immediately. Curves: tensorboard --logdir results
"""


def program() -> str:
    """Return the name by which the user called the command."""
    called = Path(sys.argv[0]).stem
    return called if called in (*COMMANDS, GODOT_RL) else OURS


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest option for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Report an error in the command line, with a suggestion for each misspelt option, and exit."""
        prefix, label, words = message.partition("unrecognized arguments: ")
        options = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        hints = (suggest(option, self._option_string_actions) for option in options)
        super().error(f"{prefix}{label}{words}{''.join(dict.fromkeys(hints))}")


class _PrintSchema(argparse.Action):
    """Prints the schema and exits, as `--version` prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from headrace.config.schema import as_json

        say(as_json())
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser for the command line.

    Callers use `parse`, which accepts the file anywhere among the options.
    """
    name = program()
    parser = _Parser(
        prog=name,
        allow_abbrev=False,  # a new option could change what an abbreviation means
        usage=f"{name} [CONFIG] [options]",
        description=DESCRIPTION,
        epilog=EPILOG.format(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        metavar="CONFIG",
        nargs="*",
        type=user_path,
        help="the YAML file, or - for standard input; ML-Agents' training files work as they are. Without a file, all "
        "behaviours in the environment learn with the default settings",
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            option.add_to(group)
    _add_file_options(parser.add_argument_group("the file"))
    runs = parser.add_argument_group("existing runs and models")
    _add_run_options(runs)
    _add_serving_options(runs)
    old = parser.add_argument_group("options from older ML-Agents versions")
    for option in OLD_OPTIONS:
        option.add_to(old)
    return parser


def _add_file_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="override one key of the file; repeatable")
    add(
        "--tune",
        metavar="SPACE",
        type=_file,
        help="search for the best values of some keys with Optuna; SPACE is a YAML file with the search space "
        "(docs/tuning.md). The same command continues the study, also on other machines",
    )
    add(
        "--validate",
        action="store_true",
        help="print the pipeline that would be built, or every error in the configuration, without training. Headrace "
        "also tries a small version of the run, up to its first updates",
    )
    add(
        "--no-env-check",
        action="store_true",
        help="with --validate: check only the file itself, without a trial run and without looking for the files that "
        "it names",
    )
    add("--schema", action=_PrintSchema, nargs=0, help="print the JSON Schema of the file, with which editors check it")
    add(
        "--convert",
        metavar="OLD",
        type=user_path,
        help="convert a file for an older version of ML-Agents, or an rl-baselines3-zoo entry (--id), and print the "
        "result, without running it",
    )
    add("--id", metavar="ENV", help="with --convert: the environment whose rl-baselines3-zoo entry to convert")
    add(
        "--algo",
        metavar="NAME",
        help="with --convert: the algorithm, ppo or sac, if the file's name does not contain it",
    )
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="print the settings of each behaviour; run_logs/run.log always has them",
    )
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how runs and --serve write their log: as text, or as one JSON object per line (default: text)",
    )
    add("--version", action="version", version=f"headrace {version_of('headrace')}")


def _file(text: str) -> Path:
    return Path(user_path(text))


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--to-demo",
        metavar=("FROM", "TO"),
        nargs=2,
        type=user_path,
        help=(
            "convert recorded streams to Unity's .demo files: FROM takes the same values as demo_path; TO is a file "
            "or a folder"
        ),
    )
    add(
        "--export-onnx",
        metavar="RUN_FOLDER",
        type=_file,
        help="rewrite a run's .onnx files from its .pt files; give the run's folder, such as results/ppo",
    )
    add(
        "--plot",
        metavar="RUN",
        nargs="+",
        type=user_path,
        help="plot the reward, rating and losses of runs to an image file, together with TensorBoard logs of "
        "Stable-Baselines3 and CleanRL; runs that differ only in their seed become one curve with an interval",
    )
    add("--x", choices=("steps", "time"), default=None, help="horizontal axis of --plot (default: steps)")
    add(
        "--plot-file",
        metavar="PNG",
        type=_file,
        help="file that --plot writes (default: curves.png in the run's folder, or in the current folder if several "
        "runs are given)",
    )
    add(
        "--diagnose",
        metavar="RUN",
        nargs="+",
        type=user_path,
        help="say why runs do not learn, with evidence and cure; probes the environment for seconds unless "
        "--no-env-check is given. Also reads TensorBoard folders of Stable-Baselines3 and CleanRL",
    )
    add(
        "--format",
        choices=("text", "json"),
        default=None,
        help="how --diagnose prints its findings (default: text)",
    )
    add(
        "--tournament",
        metavar="PLAYER",
        nargs="+",
        type=user_path,
        help="let runs' policies, models and scripted players play each other, --episodes N games per pair (default: "
        "20), and print a table of ratings; if only one run is given, its policies play each other and the game's "
        "scripted player",
    )
    add(
        "--view",
        metavar="RUN",
        nargs="+",
        type=user_path,
        help="serve the live page for one or more run folders, to compare them side by side; --monitor=HOST:PORT sets "
        "the address",
    )


def _add_serving_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--serve",
        metavar="MODEL",
        nargs="+",
        help="serve policies over HTTP and gRPC: a client sends observations and receives actions. Give .pt or .onnx "
        "files or run folders, each optionally as NAME=PATH; --deterministic and --seed apply",
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        help="address for --serve (default: only for this machine, on the first free port from 8480; all:PORT also "
        "accepts other machines)",
    )
    add(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="let web pages from this origin, such as https://game.example, send requests to --serve; repeatable",
    )
    add(
        "--access-log",
        action="store_true",
        help="log every HTTP request to --serve: caller, method, path, status and seconds",
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit if it has a mistake, as argparse does."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    ours = words.index(LAST) if LAST in words else len(words)
    for at, word in enumerate(words[:ours]):
        if word == ATTACHED:  # the next argument is the file or a different option
            words[at] = f"{ATTACHED}="
    return parser().parse_intermixed_args(words)


@dataclass(frozen=True, slots=True)
class Request:
    """The meaning of a command line."""

    config: Path | None
    """The configuration file; None if the command names none."""
    overrides: tuple[Override | str, ...]
    """Values that override the file. Later ones take precedence, and those from `--set` come last."""
    warnings: tuple[str, ...] = ()
    env: str | None = None
    """The Unity executable; None if the command names none."""
    old_files: Mapping[str, Any] = field(default_factory=dict)
    """Old files to convert with the configuration, as keyword arguments for `load_config` and `convert`."""


def read_request(args: argparse.Namespace) -> Request:
    """Build the request from the parsed arguments.

    Raises:
        CommandError: if the command can't run; the message lists all reasons.
    """
    old = [(option, value) for option in OLD_OPTIONS if (value := getattr(args, option.name)) is not None]
    refusals, warnings = [], []
    for option, value in old:
        if option.flag in REFUSED and (option.flag, value) != ("--num-runs", 1):
            refusals.append(f"{option.given(value)}: {option.text}")
        else:
            warnings.append(f"{option.given(value)} is an option from older versions of ML-Agents: {option.text}")
    if len(args.paths) > 1:
        refusals.append(
            f"expected one configuration file, got {len(args.paths)}: {', '.join(args.paths)}; give an environment "
            "with --env, and write an option's value directly after it: --monitor=8080"
        )
    if refusals:
        raise CommandError("\n".join(refusals))
    now = argparse.Namespace(**vars(args))
    if args.worker_id is not None:
        now.base_port = (EnvSettings().base_port if args.base_port is None else args.base_port) + args.worker_id
    # Old options come first, so that current ones take precedence.
    options = [*old, *((option, getattr(now, option.name)) for group in OPTIONS.values() for option in group)]
    overrides = [override for option, value in options if value is not None for override in option.overrides(value)]
    if args.initialize_from is not None and not args.resume:  # it also overrides the file's `resume: true`
        overrides.append(Override("--initialize-from", ("checkpoint_settings", "resume"), False))
    old_files = {name: value for name in OLD_FILES if (value := getattr(args, name)) is not None}
    config = Path(args.paths[0]) if args.paths else None
    return Request(config, (*overrides, *args.set), tuple(warnings), args.env, old_files)


def contradictions(request: Request, config: RunConfig) -> list[str]:
    """Return the reasons why the request does not fit this configuration."""
    if not config.checkpoint_settings.inference:
        args = [
            override.name
            for override in request.overrides
            if isinstance(override, Override) and override.path[0] == "inference"
        ]
        if args:
            return [f"{args[0]}: add --inference, which plays with the trained policies of the run"]
    if request.env is not None and config.environment is not None and not config.environment_kind.apart:
        return [
            f"--env {request.env}: the configuration's 'environment' section runs "
            f"{config.environment.kind} {config.environment.named}; keep one of the two"
        ]
    return []
