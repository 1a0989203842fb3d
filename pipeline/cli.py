"""The command line: `run-pipeline CONFIG [options]`.

Nothing heavy is imported before it is known that there is something to run: `--help` and `--validate` answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from config import ConfigError, RunConfig, load_config

EPILOG = """\
examples:
  run-pipeline config/examples/volley.yaml                     train the built-in ball game by self-play
  run-pipeline cartpole.yaml --run-id first --seed 1           train, into results/first
  run-pipeline cartpole.yaml --run-id first --resume           go on from its last checkpoint
  run-pipeline cartpole.yaml --run-id first --inference        play with what was trained, learn nothing
  run-pipeline cartpole.yaml --set behaviors.CartPole.hyperparameters.learning_rate=1e-3
  run-pipeline cartpole.yaml --validate                        say what would be run, or what is wrong

Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends at once. Curves: tensorboard --logdir results
"""


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    made = argparse.ArgumentParser(
        prog="run-pipeline",
        usage="run-pipeline CONFIG [options]",
        description="Train agents with deep reinforcement learning, as a pipeline described by one YAML file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "config",
        metavar="CONFIG",
        type=Path,
        help="the YAML file; ML-Agents' training files work as they are",
    )
    add(
        "--run-id",
        metavar="ID",
        help="name of the run and of its folder under results/ (default: the file's, or ppo)",
    )
    add("--resume", action="store_true", default=None, help="go on from the run's last checkpoint")
    add("--force", action="store_true", default=None, help="put a run of the same name aside and start anew")
    add(
        "--inference",
        action="store_true",
        default=None,
        help="play with the run's trained policies until Ctrl-C",
    )
    add(
        "--seed",
        metavar="N",
        type=int,
        help="seed of all chance in the run (default: the file's; -1 is random)",
    )
    add("--num-envs", metavar="N", type=int, help="environment instances per actor")
    add("--results-dir", metavar="DIR", help="where runs are kept (default: results)")
    add(
        "--record",
        action="store_true",
        help="record what reaches the trainers, under results/<run-id>/streams/",
    )
    add("--replay", metavar="STREAM", nargs="+", help="learn from recorded streams instead of acting")
    add(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="override one key of the file; repeatable",
    )
    add(
        "--validate",
        action="store_true",
        help="print the pipeline that would be built, or every mistake; run nothing",
    )
    add("--debug", action="store_true", default=None, help="log in detail")
    add("--version", action="version", version=f"headrace {_version()}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration."""
    asked = parser().parse_args(arguments)
    try:
        config = load_config(asked.config, overrides(asked))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if asked.validate:
        from pipeline.graph import describe

        print(describe(config))
        return 0
    return _run(config)


def overrides(asked: argparse.Namespace) -> list[str]:
    """The options that stand for keys of the file, as overrides; `--set` comes last and wins."""
    keys = {
        "checkpoint_settings.run_id": asked.run_id,
        "checkpoint_settings.resume": asked.resume,
        "checkpoint_settings.force": asked.force,
        "checkpoint_settings.inference": asked.inference,
        "checkpoint_settings.results_dir": asked.results_dir,
        "env_settings.seed": asked.seed,
        "environment.num_envs": asked.num_envs,
        "debug": asked.debug,
    }
    given = [f"{key}={_yaml(value)}" for key, value in keys.items() if value is not None]
    if asked.record:
        given.append("record.edges=[trainer]")
    if asked.replay:
        given.append(f"replay.streams={_yaml(asked.replay)}")
    return [*given, *asked.set]


def _yaml(value: object) -> str:
    import json

    return json.dumps(value)  # every JSON text is a YAML text


def _run(config: RunConfig) -> int:
    # Before NumPy is imported: its libraries read these once. Small networks want one thread.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from pipeline.checkpoint import CheckpointError
    from pipeline.console import configure_logging
    from pipeline.errors import RunError, RunFailed, RunFolderError

    configure_logging(config.debug)
    try:
        return asyncio.run(_run_with_signals(config))
    except (RunError, RunFolderError, CheckpointError, ConfigError) as error:
        print(f"run-pipeline: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        if config.debug and error.detail:
            print(error.detail, file=sys.stderr)
        print(f"run-pipeline: the run has failed: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("run-pipeline: ended at once; what was not checkpointed is lost", file=sys.stderr)
        return 130


async def _run_with_signals(config: RunConfig) -> int:
    from pipeline.progress import Progress
    from pipeline.run import RunOptions, run_async
    from pipeline.signals import first_stops_second_cancels

    stop = asyncio.Event()
    with first_stops_second_cancels(stop, (signal.SIGINT, signal.SIGTERM)):
        options = RunOptions(stop=stop, progress=Progress(enabled=sys.stderr.isatty()), console=True)
        result = await run_async(config, options)
    for name, behavior in result.behaviors.items():
        if behavior.export is not None:
            print(f"{name}: {behavior.step} steps, policy in {behavior.export}")
    return 0


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "(not installed)"
