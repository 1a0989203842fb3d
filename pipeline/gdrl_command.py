"""The `gdrl` command for Godot RL Agents users: maps its flags, and its example scripts' flags, to Headrace runs.

A saved model is a saved run (`pipeline/run_folder/carrying.py`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.paths import user_path
from headrace.pipeline.actions import train
from headrace.pipeline.command.parser import OURS
from headrace.pipeline.common.errors import CommandError, RunFolderError
from headrace.pipeline.common.output import complain, speaking
from headrace.pipeline.reporting.console import ProgressSnapshot
from headrace.pipeline.run_folder.carrying import carry, same_checkpoint, unpack
from headrace.pipeline.run_folder.checkpoint import CheckpointError, newest_checkpoint, numbered_folders
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.startup_context import absolute, shown

# The flags of `gdrl` and of Godot RL Agents' Stable-Baselines3 example, with the same names and meanings.

TRAINERS = ("sb3", "sf", "rllib")
DESCRIPTION = f"""\
Train the agents of a game made with Godot and the Godot RL Agents addon: in the editor, or in exported builds.
An existing experiment is resumed. {OURS} does the same from a YAML file, and more.
"""
EPILOG = """\
examples:
  gdrl                                                    train in the editor: press Play when prompted
  gdrl --env_path=builds/ball.x86_64 --n_parallel=4       train in four builds in parallel, into logs/sb3/experiment
  gdrl --env_path=builds/ball.x86_64 --inference          play with the trained policies
  gdrl --trainer=rllib --config_file=rllib_config.yaml    train with RLlib's file

Other --key=value arguments are passed on to the game. Ctrl-C saves and ends.
"""
_PATH: Mapping[str, Any] = {"metavar": "PATH", "type": user_path}


def read_flags(arguments: Sequence[str] | None) -> tuple[Namespace, list[str]]:
    """Parse the command line; return its flags and the game's arguments."""
    parser = _parser()
    args, passed = parser.parse_known_args(arguments)
    if args.timesteps is not None and args.timesteps < 1:
        parser.error(f"--timesteps={args.timesteps}: must be at least 1")
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
    add("--trainer", choices=TRAINERS, default="sb3", help="settings to use: sb3's (default), sf's, or an rllib file's")
    add("--env_path", **_PATH, help="the exported game; without it, the run waits for the editor")
    add(
        "--config_file",
        metavar="FILE",
        type=user_path,
        help="RLlib's YAML file, with --trainer=rllib (ppo_test.yaml)",
    )
    add("--experiment_dir", metavar="DIR", type=user_path, help="folder for all experiments (logs/<trainer>)")
    add("--experiment_name", metavar="NAME", default="experiment", help="the experiment's own folder (experiment)")
    add("--seed", type=int, default=0, help="seed of the experiment (0)")
    add(
        "--base_port",
        "--base-port",
        type=int,
        metavar="PORT",
        help="port of the first game; only Headrace has this option (11008)",
    )
    add("--timesteps", type=int, default=None, metavar="N", help="number of agent steps to train for (1,000,000)")
    add("--train_for_env_steps", dest="timesteps", type=int, metavar="N", help="sf's name for --timesteps")
    add(
        "--n_parallel",
        type=int,
        default=1,
        metavar="N",
        help="builds to run in parallel; more than 1 requires --env_path (1)",
    )
    add("--speedup", type=float, default=1.0, metavar="X", help="speed of the game, as a multiple of real time (1)")
    add("--viz", action="store_true", help="show the builds' windows, which camera images require")
    add("--linear_lr_schedule", action="store_true", help="let the learning rate decay linearly to 0 at the last step")
    add("--resume_model_path", "--restore", **_PATH, help="continue from a model that --save_model_path wrote")
    add("--save_model_path", **_PATH, help="also save the experiment's last checkpoint as PATH.zip")
    add("--save_checkpoint_frequency", type=int, metavar="N", help="steps between checkpoints (50,000)")
    add("--onnx_export_path", **_PATH, help="also write the model as PATH.onnx; the experiment always keeps a copy")
    add(
        "--inference",
        "--eval",
        action="store_true",
        help="play with the trained policies, for --timesteps or until Ctrl-C",
    )
    add("--export", action="store_true", help="no effect: models are exported with each checkpoint")
    add("--num_gpus", type=int, metavar="N", help="0: learn on the CPU")
    add("--env", help=argparse.SUPPRESS)  # --env=gdrl of every tutorial, which named the environment for Sample Factory
    return parser


@speaking
def main(arguments: Sequence[str] | None = None, run: Callable[..., int] = train) -> int:
    """Run the command and return its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration.

    Args:
        arguments: the command's arguments; None to use this process's arguments.
        run: runs a configuration, with the arguments of `actions.train`; returns the exit status.
    """
    args, passed = read_flags(arguments)
    try:
        config = configuration_of(args, passed)
    except (CommandError, ConfigError) as error:
        complain(f"gdrl: {error}")
        return 2
    for warning in config.warnings:
        complain(f"warning: {warning}")
    if passed:
        complain(f"Passed on to the game: {' '.join(passed)}")

    most: int | None = args.timesteps if args.inference else None

    def have_played(run: ProgressSnapshot) -> bool:
        return most is not None and sum(behavior.steps for behavior in run.behaviors) >= most

    status = run(config, until=have_played)
    if args.inference or not numbered_folders(folder_of(args) / "checkpoints"):
        return status
    try:
        for written in _left(args):
            sys.stdout.write(f"{written}\n")
    except CommandError as error:
        complain(f"gdrl: {error}")
        return status or 1
    return status


def _left(args: Namespace) -> list[str]:
    """Write the files requested next to the experiment; return a line for each."""
    folder = folder_of(args)
    lines = []
    if args.save_model_path is not None:
        path = Path(args.save_model_path).with_suffix(".zip")
        try:
            lines.append(f"saved as {carry(folder, path)}")
        except (RunFolderError, OSError) as error:
            raise CommandError(f"--save_model_path {path}: can't be written: {error}") from error
    if args.onnx_export_path is not None:
        models = sorted(folder.glob("*.onnx"))
        if not models:
            raise CommandError(f"--onnx_export_path: {folder} has no model; the log in that folder says why")
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


# From flags to a configuration: what to train, where to keep it, and what to continue from.

TIMESTEPS = 1_000_000
_CHECKPOINTS = 50_000
_STEPS_OF_A_BUILD = 1_024
"""Steps per update for one build: 32 for each agent, as in the Stable-Baselines3 example, and 32 agents in a build."""
_RLLIB_FILE = "ppo_test.yaml"


def folder_of(args: Namespace) -> Path:
    """Return the experiment's folder."""
    return absolute(Path(args.experiment_dir, args.experiment_name))


def configuration_of(args: Namespace, passed: Sequence[str]) -> RunConfig:
    """Return the configuration that the flags describe.

    Args:
        args: the flags.
        passed: the game's arguments.

    Raises:
        CommandError: if the flags contradict each other, or name something that is missing.
        ConfigError: with every mistake in the values and in RLlib's file.
    """
    if args.n_parallel > 1 and args.env_path is None and args.trainer != "rllib":
        raise CommandError(
            "--n_parallel: the editor can run only one game at a time; export the game and give it with --env_path"
        )
    if args.resume_model_path is not None:
        _take_up(Path(args.resume_model_path), folder_of(args))
    done = _steps_done(folder_of(args))
    if args.inference and done is None:
        raise CommandError(
            f"--inference: no experiment has been trained yet in {shown(folder_of(args))}; name the experiment with "
            "--experiment_dir and --experiment_name, or a saved model with --resume_model_path"
        )
    overrides = _flags(args, passed)
    overrides["checkpoint_settings.run_id"] = args.experiment_name
    overrides["checkpoint_settings.results_dir"] = args.experiment_dir
    overrides["checkpoint_settings.inference"] = bool(args.inference)
    if done is not None:
        overrides["checkpoint_settings.resume"] = not args.inference
    elif folder_of(args).exists():
        overrides["checkpoint_settings.force"] = True  # without a checkpoint there is nothing to continue from
    source = _source(args)
    learns = load_config(source).default_settings
    assert learns is not None, "both kinds of source have them"
    steps = learns.max_steps if args.timesteps is None else args.timesteps
    if done is not None and (args.resume_model_path is not None or done >= steps):
        steps += done  # continues a finished experiment, and an interrupted one to its end
    overrides["default_settings.max_steps"] = steps
    return load_config(source, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])


def _source(args: Namespace) -> Path | Mapping[str, Any]:
    """Return the settings of RLlib's file or of the Stable-Baselines3 example."""
    if args.trainer == "rllib":
        return Path(args.config_file or _RLLIB_FILE)
    schedule = "linear" if args.linear_lr_schedule else "constant"
    return {
        "environment": {"kind": "godot"},
        "default_settings": {
            "trainer_type": "ppo",
            "hyperparameters": {
                "batch_size": 64,
                "buffer_size": _STEPS_OF_A_BUILD * args.n_parallel,
                "learning_rate": 3e-4,
                "learning_rate_schedule": schedule,
                "beta": 1e-4,
                "beta_schedule": "constant",
                "epsilon": 0.2,
                "epsilon_schedule": "constant",
                "lambd": 0.95,
                "num_epoch": 10,
                "max_grad_norm": 0.5,
            },
            "network_settings": {"hidden_units": 64, "num_layers": 2, "activation": "tanh"},
            "reward_signals": {"extrinsic": {"gamma": 0.99}},
            "time_horizon": 32,
            "max_steps": TIMESTEPS,
            "summary_freq": 10_000,
            "checkpoint_interval": _CHECKPOINTS,
        },
    }


def _flags(args: Namespace, passed: Sequence[str]) -> dict[str, Any]:
    """Return the flag values by key; with an RLlib file, only flags given explicitly override it."""
    ours = args.trainer != "rllib"
    frequency = args.save_checkpoint_frequency
    rows = (
        ("env_settings.env_path", args.env_path, args.env_path is not None),
        ("env_settings.base_port", args.base_port, args.base_port is not None),
        ("env_settings.env_args", list(passed), bool(passed)),
        ("env_settings.num_envs", args.n_parallel, ours or args.n_parallel > 1),
        ("env_settings.seed", args.seed, ours or bool(args.seed)),
        ("engine_settings.time_scale", args.speedup, ours or args.speedup != 1),
        ("engine_settings.no_graphics", not args.viz, ours or args.viz),
        ("default_settings.checkpoint_interval", frequency, frequency is not None),
        ("torch_settings.device", "cpu", args.num_gpus == 0),
        ("environment.pictures", "refuse", args.onnx_export_path is not None),
    )
    return {key: value for key, value, counts in rows if counts}


def _steps_done(folder: Path) -> int | None:
    """Return the step count of the experiment's newest checkpoint; None if it has none."""
    if not (folder / CONFIGURATION).is_file():
        return None
    try:
        checkpoint = newest_checkpoint(folder / "checkpoints")
    except CheckpointError as error:
        raise CommandError(f"{folder}: {error}; or name a new experiment with --experiment_name") from None
    return None if checkpoint is None else max(checkpoint.steps.values(), default=0)


def _take_up(model: Path, folder: Path) -> None:
    """Create an experiment from a saved model, unless it already continues from there."""
    if model.is_dir():
        raise CommandError(
            f"--resume_model_path {model} is a folder; expected a model that --save_model_path wrote. To continue an "
            "experiment, name it with --experiment_dir and --experiment_name"
        )
    model = model if model.is_file() else model.with_suffix(".zip")
    try:
        if not folder.exists():
            unpack(model, folder.parent, folder.name)
        elif not same_checkpoint(model, folder):
            raise RunFolderError(
                f"{folder} already holds a different experiment, or has been trained since {model} was saved; name a "
                "new experiment with --experiment_name, or omit --resume_model_path to continue the experiment in that "
                "folder"
            )
    except (RunFolderError, CheckpointError) as error:
        raise CommandError(f"--resume_model_path: {error}") from error
