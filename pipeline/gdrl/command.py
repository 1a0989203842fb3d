"""The command `gdrl`: from its flags to an exit status."""

from __future__ import annotations

import argparse
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from headrace.pipeline.actions import train
from headrace.pipeline.command.parser import OURS
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.gdrl.experiment import configuration_of, folder_of, save
from headrace.pipeline.reporting.progress import ProgressSnapshot

# The flags of `gdrl` and of Godot RL Agents' Stable-Baselines3 example, by the same names and meanings.

TRAINERS = ("sb3", "sf", "rllib")
DESCRIPTION = f"""\
Train the agents of a game made with Godot and the Godot RL Agents addon: in the editor, or in exported builds.
An experiment that is there already goes on. {OURS} does the same from a YAML file, and more.
"""
EPILOG = """\
examples:
  gdrl                                                    train in the editor: press Play when asked to
  gdrl --env_path=builds/ball.x86_64 --n_parallel=4       train in four builds at once, into logs/sb3/experiment
  gdrl --env_path=builds/ball.x86_64 --inference          play with what was trained
  gdrl --trainer=rllib --config_file=rllib_config.yaml    train by RLlib's file

Other --key=value arguments are passed on to the game. Ctrl-C saves and ends.
"""
_IGNORED = "env"
"""Of every tutorial: `--env=gdrl`, which named the environment for Sample Factory."""
_STEPS_BY_SAMPLE_FACTORY = "train_for_env_steps"


def read_flags(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; returns its flags, and what is the game's."""
    parser = _parser()
    args, others = parser.parse_known_args(arguments)
    if args.timesteps is not None and args.timesteps < 1:
        parser.error(f"--timesteps={args.timesteps}: expected at least 1")
    passed = [other for other in others if other.split("=")[0] != f"--{_IGNORED}"]
    if args.experiment_dir is None:
        args.experiment_dir = f"logs/{args.trainer}"
    return args, passed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdrl",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--trainer", choices=TRAINERS, default="sb3", help="whose settings: sb3's example (default), sf, rllib's file")
    add("--env_path", metavar="PATH", help="the exported game; without it, the editor is waited for")
    add("--config_file", metavar="FILE", help="RLlib's YAML file, with --trainer=rllib (ppo_test.yaml)")
    add("--experiment_dir", metavar="DIR", help="folder of all experiments (logs/<trainer>)")
    add("--experiment_name", metavar="NAME", default="experiment", help="the experiment's own folder (experiment)")
    add("--seed", type=int, default=0, help="seed of the experiment (0)")
    add("--base_port", "--base-port", type=int, metavar="PORT", help="port of the first game, ours alone (11008)")
    add("--timesteps", type=int, default=None, metavar="N", help="agents' steps to train for (1,000,000)")
    add(f"--{_STEPS_BY_SAMPLE_FACTORY}", dest="timesteps", type=int, metavar="N", help="the same, as sf calls it")
    add("--n_parallel", type=int, default=1, metavar="N", help="builds at once; more than 1 need --env_path (1)")
    add("--speedup", type=float, default=1.0, metavar="X", help="times as fast as the game is meant to be (1)")
    add("--viz", action="store_true", help="show the builds' windows; pictures of cameras need them")
    add("--linear_lr_schedule", action="store_true", help="let the learning rate fall to 0 at the last step")
    add("--resume_model_path", "--restore", metavar="PATH", help="go on from a model of --save_model_path")
    add("--save_model_path", metavar="PATH", help="also save the experiment's last checkpoint as PATH.zip")
    add("--save_checkpoint_frequency", type=int, metavar="N", help="steps between checkpoints (50,000)")
    add("--onnx_export_path", metavar="PATH", help="also write the model as PATH.onnx; it is in the experiment anyway")
    add(
        "--inference",
        "--eval",
        action="store_true",
        help="play with the trained policies, for --timesteps or until Ctrl-C",
    )
    add("--export", action="store_true", help="no effect: models are exported with each checkpoint")
    add("--num_gpus", type=int, metavar="N", help="0: learn on the CPU")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration."""
    from headrace.config import ConfigError

    args, passed = read_flags(arguments)
    try:
        config = configuration_of(args, passed)
    except (CommandError, ConfigError) as error:
        sys.stderr.write(f"gdrl: {error}\n")
        return 2
    for warning in config.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    if passed:
        sys.stderr.write(f"Passed on to the game: {' '.join(passed)}\n")

    most: int | None = args.timesteps if args.inference else None

    def have_played(run: ProgressSnapshot) -> bool:
        return most is not None and sum(behavior.steps for behavior in run.behaviors) >= most

    status = train(config, until=have_played)
    if args.inference or not (folder_of(args) / "checkpoints" / "manifest.json").is_file():
        return status
    try:
        for written in _left(args):
            sys.stdout.write(f"{written}\n")
    except CommandError as error:
        sys.stderr.write(f"gdrl: {error}\n")
        return status or 1
    return status


def _left(args: Namespace) -> list[str]:
    """Write what was asked for beside the experiment; returns a line for each file."""
    folder = folder_of(args)
    lines = []
    if args.save_model_path is not None:
        lines.append(f"saved as {save(folder, Path(args.save_model_path))}")
    if args.onnx_export_path is not None:
        models = sorted(folder.glob("*.onnx"))
        if not models:
            raise CommandError(f"--onnx_export_path: {folder} has no model, as its log says why")
        path = Path(args.onnx_export_path).with_suffix(".onnx")
        for model in models:
            target = path if len(models) == 1 else path.with_name(f"{path.stem}_{model.name}")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model, target)
            except OSError as error:
                raise CommandError(f"--onnx_export_path {target}: {error.strerror or error}") from error
            lines.append(f"exported as {target}")
    return lines
