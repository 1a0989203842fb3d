"""Makes the trainer that the YAML names: a built-in one, or `module:Class`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from config.errors import KeyPath, dotted
from stages.errors import LoadError, blaming
from stages.loading import load_attribute
from stages.trainer.protocol import Trainer, TrainerContext


def make_trainer(context: TrainerContext) -> Trainer:
    """Make a behaviour's trainer.

    Args:
        context: what it is built from.

    Raises:
        LoadError: if the class can't be imported, is no Trainer, asks for columns that no policy gives, or does
            not take the hyperparameters.
    """
    kind = context.settings.trainer_type
    if kind == "ppo":
        from stages.trainer.ppo import PPOTrainer

        return PPOTrainer(context)
    if kind == "poca":
        from stages.trainer.poca import POCATrainer

        return POCATrainer(context)
    if kind == "sac":
        from stages.trainer.sac import SACTrainer

        return SACTrainer(context)
    if kind == "bc":
        from stages.trainer.bc import BCTrainer

        return BCTrainer(context)
    path = ("behaviors", context.behavior)
    found = find_trainer(kind, context.folder, path)
    try:
        return found(context)
    except ValidationError as error:  # of a subclass, whose base takes the YAML's hyperparameters for its own
        with blaming(*path, "hyperparameters"):
            raise LoadError(_told(error, f"{dotted(path)}.hyperparameters", kind)) from error


def find_trainer(kind: str, folder: Path | None, path: KeyPath) -> type[Trainer]:
    """The class that a `trainer_type` of the form `module:Class` names.

    Args:
        kind: `module:Class`.
        folder: where the YAML lies, whose modules are importable.
        path: of the behaviour's block in the YAML.

    Raises:
        LoadError: if it can't be imported, is no Trainer, or asks for columns that no policy gives.
    """
    where = f"{dotted(path)}.trainer_type"
    with blaming(*path, "trainer_type"):
        found = load_attribute(kind, folder, where)
        if not (isinstance(found, type) and issubclass(found, Trainer)):
            raise LoadError(f"{where}: {kind} is not a class derived from stages.trainer.Trainer, got {found!r}")
        if found.extra_columns:
            names = ", ".join(column.name for column in found.extra_columns)
            raise LoadError(
                f"{where}: {kind} asks for the columns {names}, which no policy gives; "
                "policies give actions, log_probs and action_masks"
            )
    return found


def _told(error: ValidationError, where: str, kind: str) -> str:
    """What does not fit, key by key."""
    found = [
        f"{'.'.join([where, *map(str, detail['loc'])])}: {detail['msg']}, got {detail['input']!r}"
        for detail in error.errors(include_url=False)
    ]
    return f"{kind} can't be made of the YAML's hyperparameters:\n" + "\n".join(found)
