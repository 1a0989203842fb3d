"""Options of ML-Agents' older versions: their present meaning, or what to write in their place.

An option that still has a meaning is followed, with a warning that shows the present spelling. One that can't be
followed is refused: a run that quietly did something else would cost more than a message.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config import EnvSettings, Override
from headrace.pipeline.command.options import Option, each_behavior

_OLD = "is an option of older versions of ML-Agents"


@dataclass(frozen=True, slots=True)
class Translation:
    """The present meaning of an old option."""

    overrides: tuple[Override, ...] = ()
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """Reasons why the command can't be followed, with what to write instead."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Values of present options, by their attribute, that replace those given."""
    old_files: Mapping[str, Any] = field(default_factory=dict)
    """Files to convert together with the configuration file: keyword arguments of `load_config`."""


def _warn(text: str) -> Translation:
    return Translation(warnings=(text,))


def _refuse(text: str) -> Translation:
    return Translation(refusals=(text,))


def _set_keys(flag: str, keys: tuple[str, ...], value: object, instead: str) -> Translation:
    """Translate an option that sets these keys; `instead` is its present spelling."""
    option = Option(flag, keys, "", metavar="VALUE" if not isinstance(value, bool) else "", value=value)
    warning = f"{flag}: {_OLD}; it was read as {instead}"
    return Translation(tuple(option.overrides(value)), (warning,))


def _superseded(flag: str, today: str) -> Translation:
    return _warn(f"{flag}: {_OLD} and has no effect beside {today}")


def _train(args: argparse.Namespace, given: Any) -> Translation:
    return _warn(f"--train: {_OLD} and not needed any more; --inference plays without learning")


def _load(args: argparse.Namespace, given: Any) -> Translation:
    instead = "--resume"
    if not args.train and not args.inference:
        instead += " (older versions only played without --train: add --inference for that)"
    return _set_keys("--load", ("checkpoint_settings.resume",), True, instead)


def _slow(args: argparse.Namespace, given: Any) -> Translation:
    if args.time_scale is not None:
        return _superseded("--slow", f"--time-scale {args.time_scale:g}")
    return _set_keys("--slow", ("engine_settings.time_scale",), 1.0, "--time-scale 1")


def _keep_checkpoints(args: argparse.Namespace, given: int) -> Translation:
    return _set_keys(
        "--keep-checkpoints", each_behavior("keep_checkpoints"), given, f"'keep_checkpoints: {given}' in each behaviour"
    )


def _save_freq(args: argparse.Namespace, given: int) -> Translation:
    return _set_keys(
        "--save-freq",
        each_behavior("checkpoint_interval"),
        given,
        f"'checkpoint_interval: {given}' in each behaviour",
    )


def _worker_id(args: argparse.Namespace, given: int) -> Translation:
    port = given + (args.base_port if args.base_port is not None else EnvSettings().base_port)
    warning = f"--worker-id: {_OLD}; it was read as --base-port {port}"
    return Translation(warnings=(warning,), replaced={"base_port": port})


def _cpu(args: argparse.Namespace, given: Any) -> Translation:
    if args.torch_device is not None:
        return _superseded("--cpu", f"--torch-device {args.torch_device}")
    return _set_keys("--cpu", ("torch_settings.device",), "cpu", "--torch-device cpu")


def _multi_gpu(args: argparse.Namespace, given: Any) -> Translation:
    return _refuse("--multi-gpu: a trainer computes on one device; leave it out, or name one: --torch-device cuda:1")


def _num_runs(args: argparse.Namespace, given: int) -> Translation:
    if given == 1:
        return _warn(f"--num-runs: {_OLD} and not needed any more: a command makes one run")
    run = args.run_id or "ppo"
    apart = EnvSettings().base_port + (args.num_envs or 1)
    return _refuse(
        f"--num-runs {given}: a command makes one run. Start each by itself, with ports of its own: "
        f"--run-id {run}-0, --run-id {run}-1 --base-port {apart}, and so on"
    )


def _docker_target_name(args: argparse.Namespace, given: str) -> Translation:
    paths = [f"/{given}/{path}" for path in args.paths] or ["the configuration file"]
    return _refuse(
        f"--docker-target-name {given}: paths are used as they are given. Write them in full: "
        f"{' '.join(paths)} --results-dir /{given}/results"
    )


def _old_file(flag: str, key: str) -> Callable[[argparse.Namespace, Any], Translation]:
    def translate(args: argparse.Namespace, given: Any) -> Translation:
        warning = (
            f"{flag}: {_OLD}; its content belongs into the configuration file now, under "
            f"environment_parameters ('{flag} {given} --convert FILE' writes it so)"
        )
        return Translation(warnings=(warning,), old_files={key: given})

    return translate


def _lesson(args: argparse.Namespace, given: int) -> Translation:
    if given < 0:
        return _refuse(f"--lesson {given}: expected the number of a lesson, from 0")
    warning = (
        f"--lesson: {_OLD}; leave the lessons before it out of environment_parameters.<parameter>.curriculum instead"
    )
    return Translation(warnings=(warning,), old_files={"lesson": given})


def _framework(flag: str) -> Callable[[argparse.Namespace, Any], Translation]:
    def translate(args: argparse.Namespace, given: Any) -> Translation:
        return _warn(f"{flag}: {_OLD} and has no effect; trainers compute with PyTorch")

    return translate


Translate = Callable[[argparse.Namespace, Any], Translation]
"""Translates the value of an old option, given with all others."""

OLD_OPTIONS: tuple[tuple[Option, Translate], ...] = (
    (Option("--train", (), "no effect: training is the default"), _train),
    (Option("--load", (), "--resume"), _load),
    (Option("--slow", (), "--time-scale 1"), _slow),
    (Option("--keep-checkpoints", (), "keep_checkpoints in each behaviour", "N", int), _keep_checkpoints),
    (Option("--save-freq", (), "checkpoint_interval in each behaviour", "N", int), _save_freq),
    (Option("--worker-id", (), "--base-port, N higher", "N", int), _worker_id),
    (Option("--cpu", (), "--torch-device cpu"), _cpu),
    (Option("--torch", (), "no effect"), _framework("--torch")),
    (Option("--tensorflow", (), "no effect"), _framework("--tensorflow")),
    (Option("--curriculum", (), "environment_parameters", "PATH"), _old_file("--curriculum", "curriculum")),
    (Option("--sampler", (), "environment_parameters", "FILE"), _old_file("--sampler", "sampler")),
    (Option("--lesson", (), "environment_parameters, without the lessons before it", "N", int), _lesson),
    (Option("--num-runs", (), "refused, unless 1", "N", int), _num_runs),
    (Option("--multi-gpu", (), "refused"), _multi_gpu),
    (Option("--docker-target-name", (), "refused", "NAME"), _docker_target_name),
)


def add_old_options(group: argparse._ArgumentGroup) -> None:
    """Add the old options to argparse."""
    for option, _ in OLD_OPTIONS:
        option.add_to(group)


def translations(args: argparse.Namespace) -> Iterator[Translation]:
    """Yield the translation of each old option that was given."""
    for option, translate in OLD_OPTIONS:
        given = getattr(args, option.name)
        if given is not None:
            yield translate(args, given)
