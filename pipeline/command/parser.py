"""The command line's parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.pipeline.command.old_options import add_old_options
from headrace.pipeline.command.options import OPTIONS
from headrace.pipeline.common.versions import version_of

OURS = "run-pipeline"
ML_AGENTS = "mlagents-learn"
GODOT_RL = "gdrl"
COMMANDS = (OURS, ML_AGENTS)
"""Names under which the command is installed; both do the same, but that the second prints all settings."""

ATTACHED, LAST = "--monitor", "--env-args"
"""The option whose value, which it need not have, is joined to it by '='; and the one behind which all is Unity's."""

DESCRIPTION = """\
Train agents with deep reinforcement learning, as a pipeline described by one YAML file.
An option takes precedence over the file; one that is not given leaves the file's value as it is.
"""

EPILOG = """\
examples:
  {0} config/examples/volley.yaml                     train the built-in ball game by self-play
  {0} cartpole.yaml --run-id first --seed 1           train, into results/first
  {0} cartpole.yaml --run-id first --resume           resume from its last checkpoint
  {0} cartpole.yaml --run-id first --inference        play with what was trained, learn nothing
  {0} 3DBall.yaml --env Builds/3DBall --num-envs 4    train in four Unity executables
  {0} 3DBall.yaml --run-id ball                       train in the Unity Editor: press Play when asked to
  {0} cartpole.yaml --set behaviors.CartPole.hyperparameters.learning_rate=1e-3
  {0} cartpole.yaml --validate                        print what would be run, or what is wrong

Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends at once. Curves: tensorboard --logdir results
"""


def program() -> str:
    """Return the name under which the command was called."""
    called = Path(sys.argv[0]).stem
    return called if called in (*COMMANDS, GODOT_RL) else OURS


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser; use `parse`, which lets the file stand anywhere among the options."""
    name = program()
    made = argparse.ArgumentParser(
        prog=name,
        usage=f"{name} [CONFIG] [options]",
        description=DESCRIPTION,
        epilog=EPILOG.format(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "paths",
        metavar="CONFIG",
        nargs="*",
        help="the YAML file; ML-Agents' training files work as they are. Without one, whatever behaviours the "
        "environment has learn with the defaults",
    )
    for title, options in OPTIONS.items():
        group = made.add_argument_group(title)
        for option in options:
            option.add_to(group)
    _add_file_options(made.add_argument_group("the file"))
    runs = made.add_argument_group("runs and models that are there")
    _add_run_options(runs)
    _add_serving_options(runs)
    add_old_options(made.add_argument_group("of ML-Agents' older versions (a warning says what to write instead)"))
    return made


def _add_file_options(files: argparse._ArgumentGroup) -> None:
    files.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="override one key of the file; repeatable",
    )
    files.add_argument(
        "--validate",
        action="store_true",
        help="print the pipeline that would be built, or every mistake; train nothing. An environment of Gymnasium or "
        "PettingZoo is tried for some steps, in a process of its own",
    )
    files.add_argument(
        "--no-env-check",
        action="store_true",
        help="with --validate: check the file alone, without trying an environment or "
        "looking for what it names on the disk",
    )
    files.add_argument(
        "--convert",
        metavar="OLD",
        help="print a file of an older version of ML-Agents in today's form; run nothing",
    )
    files.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the settings of each behaviour, which run_logs/run.log has in any case",
    )
    files.add_argument("--version", action="version", version=f"headrace {version_of('headrace')}")


def _add_run_options(files: argparse._ArgumentGroup) -> None:
    files.add_argument(
        "--to-demo",
        metavar=("FROM", "TO"),
        nargs=2,
        help="write recorded streams as Unity's .demo files: FROM is what a demo_path may be, TO a file or a folder",
    )
    files.add_argument(
        "--export-onnx",
        metavar="RUN_FOLDER",
        type=Path,
        help="write the .onnx files of a run, such as results/ppo, anew from its .pt files",
    )
    files.add_argument(
        "--plot",
        metavar="RUN",
        nargs="+",
        help="draw reward, rating and losses of runs into a picture; of several seeds mean and spread",
    )
    files.add_argument(
        "--plot-file",
        metavar="PNG",
        type=Path,
        help="where --plot draws (default: curves.png, of one run in its folder, of several here)",
    )
    files.add_argument(
        "--tournament",
        metavar="PLAYER",
        nargs="+",
        help="let policies of runs, models and scripts play each other, --episodes N games a pair (default: 20), and "
        "print a rated table; one run alone: its policies and the game's scripted player",
    )
    files.add_argument(
        "--view",
        metavar="RUN",
        nargs="+",
        help="serve the live page over runs in their folders, two side by side; with --monitor=HOST:PORT, there",
    )


def _add_serving_options(files: argparse._ArgumentGroup) -> None:
    files.add_argument(
        "--serve",
        metavar="MODEL",
        nargs="+",
        help="answer observations with actions over HTTP and gRPC: .pt and .onnx files, folders of runs, or "
        "NAME=one of these; with --deterministic and --seed",
    )
    files.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where --serve listens (default: this machine alone, from port 8480 on; all:PORT for other machines)",
    )
    files.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="pages of this origin, such as https://game.example, may call --serve from a browser; repeatable",
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a mistake ends the program, as with argparse."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    ours = given.index(LAST) if LAST in given else len(given)
    for at, word in enumerate(given[:ours]):
        if word == ATTACHED:  # what follows is the file, or another option
            given[at] = f"{ATTACHED}="
    return parser().parse_intermixed_args(given)
