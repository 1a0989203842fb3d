"""The spec that an `.onnx` model states by itself: in its notes, else by its inputs and constants."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.config.observation_kinds import kind_of_rank
from headrace.queues.errors import SpecError
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.action_outputs import ACTIONS, METADATA
from headrace.stages.policy.onnx.runtime import Runtime, whole_numbers

_IMAGE = re.compile(r"visual_observation_(\d+)")
_NUMBERED = re.compile(r"obs_(\d+)")


def stated_notes(model: Path, behavior: str) -> ModelMetadata:
    """Return the spec of a behaviour that a model plays, and its step, 0 where it does not say.

    Of a model without notes, observations have the names of its inputs.

    Raises:
        StageError: if the model can't be run, or does not say all that a spec needs.
    """
    runtime, where = Runtime(model), f"{behavior}: {model}"
    return read_notes(runtime.properties, where) or ModelMetadata(_spec(runtime, behavior, where), 0)


def _spec(runtime: Runtime, behavior: str, where: str) -> BehaviorSpec:
    inputs = [name for name in runtime.shapes if name not in (contract.ACTION_MASKS, contract.RECURRENT_IN)]
    observations = tuple(_observation(name, runtime.shapes[name], where) for name in sorted(inputs, key=_place))
    on_zeros = runtime.on_zeros((contract.VERSION_NUMBER, *METADATA, *ACTIONS))
    if contract.VERSION_NUMBER not in on_zeros:
        raise StageError(f"{where}: is no model of ML-Agents' kind: it has no output {contract.VERSION_NUMBER}")
    version = whole_numbers(on_zeros[contract.VERSION_NUMBER])[0]
    continuous = max(0, whole_numbers(on_zeros.get(contract.CONTINUOUS_SIZE))[0])
    if not continuous and contract.DISCRETE_SIZES not in on_zeros and contract.CONTINUOUS in on_zeros:
        continuous = on_zeros[contract.CONTINUOUS].size
    branches: tuple[int, ...] = ()
    if contract.DISCRETE_SIZES in on_zeros or contract.DISCRETE in on_zeros:
        branches = tuple(size for size in whole_numbers(on_zeros.get(contract.DISCRETE_SIZES)) if size > 0)
        if version < contract.VERSION or not branches:
            raise StageError(
                f"{where}: does not say how many choices each discrete branch has (ML-Agents' model version {version} "
                "has only their sum); it can be played where an environment says so, with --inference"
            )
    if not continuous and not branches:
        raise StageError(f"{where}: does not say which actions it gives")
    return BehaviorSpec(
        behavior, observations, ActionSpec(continuous, branches, masked=contract.ACTION_MASKS in runtime.shapes)
    )


def _observation(name: str, shape: tuple[int | None, ...], where: str) -> ObservationSpec:
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape) or kind_of_rank(len(sizes)) == "unknown":
        raise StageError(f"{where}: its input {name} has the shape {list(shape)}, which does not say what it observes")
    return ObservationSpec(name, sizes)


def _place(name: str) -> tuple[int, int]:
    """Return the place of an input among the observations: vectors of version 2, its images, then by number."""
    for rank, pattern in ((1, _IMAGE), (2, _NUMBERED)):
        if found := pattern.fullmatch(name):
            return rank, int(found[1])
    return 0, 0


# What our `.onnx` files say beside what Unity reads: the spec that the policy was trained with, and its step.

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
