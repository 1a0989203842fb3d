"""Warm starts: initialises a new run's trainers from policies given as `init_path` or `initialize_from`.

The policies are Headrace exports or ML-Agents checkpoints; a run can also resume from an ML-Agents checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import NEWEST, exports_by_step, is_export, read_export
from headrace.pipeline.policies.ml_agents import MLAgentsCheckpoint
from headrace.pipeline.policies.model_files import beside, check_spec, learners_in
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import answered
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.trainer.protocol import Trainer
from headrace.startup_context import absolute, shown

log = logging.getLogger(__name__)


def initial_policy(config: RunConfig, behavior: str) -> Path | None:
    """Return the file that a behaviour's training starts from; None if it starts from scratch.

    `init_path` is a path, or a file name in `<results_dir>/<initialize_from>/<behaviour>/`. Without `init_path`, the
    behaviour starts from its newest export in the run that `initialize_from` names.

    Raises:
        RunError: if the file is missing.
    """
    init_path = config.behavior_settings(behavior).init_path
    source = config.checkpoint_settings.initialize_from
    results = absolute(config.checkpoint_settings.results_dir)
    folder = None
    if source is not None:
        learner = learners_in(results / source).get(behavior, [behavior])[0]  # in a league, the first learner
        folder = behavior_folder(results / source, learner)
    if init_path is None:
        if folder is None:
            return None
        newest = [folder / NEWEST] if answered(folder, (folder / NEWEST).is_file) else []
        exports = [*newest, *exports_by_step(folder, behavior)]
        if not exports:
            raise RunError(
                f"checkpoint_settings.initialize_from: {folder} holds no trained policy ({behavior}-<step>.pt); "
                "expected the id of a run that trained this behaviour"
            )
        return exports[-1]
    path = beside(init_path, config.source_folder)
    if folder is not None and Path(init_path).name == init_path and not answered(path, path.is_file):
        path = folder / init_path
    if path.suffix == ".onnx":
        raise RunError(
            f"behaviors.{behavior}.init_path: {shown(path)} can be played (--inference) but not trained further; give "
            "the .pt file that was exported with it"
        )
    if not answered(path, path.is_file):
        hint = "" if folder is not None else "; a bare file name also needs initialize_from"
        raise RunError(f"behaviors.{behavior}.init_path: there is no file {shown(path)}{hint}")
    return path


def warm_start(
    trainer: Trainer, path: Path, spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None = None
) -> None:
    """Initialise a trainer from an export or an ML-Agents checkpoint.

    If a trainer of the same type wrote the file, all its networks are used; otherwise, only the policy is used.

    Args:
        trainer: the trainer.
        path: the export or checkpoint.
        spec: the behaviour's observations and actions.
        settings: the behaviour's settings.
        folder: the YAML's folder.

    Raises:
        StageError: if the file does not fit; the message names the file and the difference.
    """
    if not is_export(path):
        _warm_start_from_ml_agents(trainer, path, spec, settings, folder)
        return
    try:
        export = read_export(path)
    except (OSError, ValueError) as error:
        raise StageError(str(error)) from error
    with _naming(path, "can't be used as a starting point"):
        check_spec(export.design.spec, spec)
        _check_form(export.design.squashed, export.trainer_type, spec, settings, folder)
        theirs, ours = export.design.settings.activation, settings.network_settings.activation
        if theirs != ours:  # the weights would fit
            text = (
                f"network_settings.activation is {ours}, but the policy was trained with {theirs}; set it to {theirs}"
            )
            raise StageError(text)
        if export.learner and export.trainer_type == settings.trainer_type:
            trainer.warm_start(export.learner)
        else:
            trainer.take_weights(export.update.tensors())


def _warm_start_from_ml_agents(
    trainer: Trainer, path: Path, spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None
) -> None:
    theirs = MLAgentsCheckpoint(path)
    with _naming(path, "can't be used as a starting point"):
        _check_form(theirs.squashed, theirs.trainer_type, spec, settings, folder)
        theirs.check(design_of(spec, settings, folder))
        if theirs.trainer_type == settings.trainer_type != "poca":
            trainer.warm_start(theirs.warm_state(trainer.warm_state(), list(settings.signals)))
            taken = "actor, critics and normaliser"
        else:
            trainer.take_weights(theirs.acting_tensors())
            taken = "actor and normaliser"
    log.info("%s: loaded the %s of an ML-Agents %s policy from %s.", spec.name, taken, theirs.trainer_type, path)


def resume_from_ml_agents(
    trainer: Trainer, path: Path, spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None
) -> None:
    """Load an ML-Agents checkpoint into a trainer: actor, critics, optimizers, normaliser and step count.

    Args:
        trainer: a new trainer.
        path: the checkpoint.
        spec: the behaviour's observations and actions.
        settings: the behaviour's settings.
        folder: the YAML's folder.

    Raises:
        StageError: if the checkpoint does not fit; the message names the file and the difference.
    """
    theirs = MLAgentsCheckpoint(path)
    with _naming(path, "can't be resumed from"):
        if theirs.trainer_type != settings.trainer_type or theirs.trainer_type == "poca":
            raise StageError(
                f"it was written by ML-Agents' {theirs.trainer_type}, but the trainer is {settings.trainer_type}; only "
                "ppo and sac can resume, each from its own checkpoint. Start a new run from its policy, with "
                "init_path or --initialize-from"
            )
        theirs.check(design_of(spec, settings, folder))
        trainer.load_state_dict(theirs.resumed_state(trainer.state_dict(), list(settings.signals)))
    left = [f"the networks of its {', '.join(theirs.unused)}"] if theirs.unused else []
    warning = trainer.load_bulk(path.parent)
    if warning is not None:
        left.append(warning)
    if left:
        log.warning("%s: not loaded from %s: %s.", spec.name, path, "; ".join(left))


@contextmanager
def _naming(path: Path, problem: str) -> Iterator[None]:
    """Prefix the message of any `StageError` raised in this context with the file and the problem."""
    try:
        yield
    except StageError as error:
        raise StageError(f"{path} {problem}: {error}") from error


def _check_form(
    theirs_squashed: bool, trainer_type: str, spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None
) -> None:
    """Refuse a policy whose continuous action distribution differs. Loading it would only report mismatched tensors."""
    squashed = design_of(spec, settings, folder).squashed
    if not spec.actions.continuous_size or theirs_squashed == squashed:
        return
    forms = {
        False: "a plain Gaussian with a state-independent standard deviation (as in ppo, poca and bc)",
        True: "the tanh of a Gaussian with a state-dependent standard deviation (as in sac, and with "
        "gsde.squash_output)",
    }
    raise StageError(
        f"its policy ({trainer_type}) draws continuous actions from "
        f"{forms[not squashed]}, but that of {settings.trainer_type} from {forms[squashed]}; start from an export of "
        "a trainer with the same distribution"
    )
