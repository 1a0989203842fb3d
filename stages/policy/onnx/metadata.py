"""What our `.onnx` files say beside what Unity reads: the spec that the policy was trained with, and its step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from headrace.queues.errors import SpecError
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError

NOTES = "headrace"
"""The key among the model's properties."""


class ModelMetadata(NamedTuple):
    """The notes of a model."""

    spec: BehaviorSpec
    step: int


def noted(spec: BehaviorSpec, step: int) -> str:
    """Return the notes as JSON."""
    return json.dumps({"spec": spec.to_plain(), "step": step}, separators=(",", ":"))


def read_notes(properties: Mapping[str, str], where: str) -> ModelMetadata | None:
    """Return the notes of a model; None if it has none: another program made it, or an older version.

    Args:
        properties: the model's own.
        where: the file, for messages.

    Raises:
        StageError: if they can't be read.
    """
    text = properties.get(NOTES)
    if text is None:
        return None
    try:
        plain = json.loads(text)
        return ModelMetadata(BehaviorSpec.from_plain(plain["spec"]), int(plain["step"]))
    except (ValueError, LookupError, TypeError, RecursionError, SpecError) as error:
        raise StageError(f"{where}: its property {NOTES!r} is not what Headrace writes: {error}") from error
