"""What a kind of trainer asks of who acts for it, known without making one: actors ask too, as they act."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stages.errors import blaming
from stages.loading import load_attribute


@dataclass(frozen=True, slots=True)
class TrainerTraits:
    """Of all trainers of a type."""

    squashed: bool = False
    """`Trainer.squashed`."""
    off_policy: bool = False
    """`Trainer.off_policy`."""


_BUILT_IN = {
    "ppo": TrainerTraits(),
    "poca": TrainerTraits(),
    "sac": TrainerTraits(squashed=True, off_policy=True),
    "bc": TrainerTraits(),
}
"""Said here, so that actors need not load the trainers and torch with them; a test holds them to the classes."""


def traits_of(trainer_type: str, behavior: str, folder: Path | None = None) -> TrainerTraits:
    """What the class that a `trainer_type` names says of itself; one of the user's own is imported for it.

    Args:
        trainer_type: as in the YAML: a built-in one, or `module:Class`.
        behavior: the behaviour's name, for messages.
        folder: the YAML's folder, where such modules lie.

    Raises:
        LoadError: if the class can't be imported.
    """
    built_in = _BUILT_IN.get(trainer_type)
    if built_in is not None:
        return built_in
    with blaming("behaviors", behavior, "trainer_type"):
        found = load_attribute(trainer_type, folder, f"behaviors.{behavior}.trainer_type")
    # What is no Trainer is refused where it is to be made.
    return TrainerTraits(bool(getattr(found, "squashed", False)), bool(getattr(found, "off_policy", False)))
