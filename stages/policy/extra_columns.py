"""The columns that policies add to each decision where a trainer asks for them by name, and what is in them.

A trainer asks by `extra_columns` of its class or of its settings (docs/extending.md). `EXTRA_COLUMNS` is the table of
all that can be asked for; `sampling.ActionSampler` fills them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.queues.columns import Column
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import LoadError, StageError

Numbers = TypeVar("Numbers")
"""An array of NumPy, or a tensor of torch."""

ACTION_HEADS = "action_heads"

VALUES = "values"
"""Refused with an explanation, as it is what other libraries' actors record."""


class ActionDistributions(NamedTuple, Generic[Numbers]):
    """The distributions that the actions of some rows were drawn from; views of `action_heads`.

    Squashed continuous actions have the Gaussians before the tanh, whose KL divergence from others is that of the
    squashed distributions.
    """

    means: Numbers
    """[.., C]"""
    log_sigmas: Numbers
    """[.., C]; of squashed actions as they were drawn, which is clamped to `sampling.LOG_SIGMA_LIMITS`."""
    logits: tuple[Numbers, ...]
    """[.., choices] of each branch, before forbidden choices are made unlikely: see `action_masks`."""


def action_heads_column(spec: BehaviorSpec) -> Column:
    """`action_heads` [.., 2·C + choices]: means, log sigmas (repeated where all states share them), then all logits."""
    actions = spec.actions
    return Column(ACTION_HEADS, "float32", (2 * actions.continuous_size + actions.mask_size,))


def split_action_heads(spec: BehaviorSpec, heads: Numbers) -> ActionDistributions[Numbers]:
    """Split `action_heads` [.., 2·C + choices] into its parts; views, of a tensor as well as of an array."""
    whole: Any = heads
    c, logits = spec.actions.continuous_size, []
    at = 2 * c
    for size in spec.actions.discrete_branches:
        logits.append(whole[..., at : at + size])
        at += size
    return ActionDistributions(whole[..., :c], whole[..., c : 2 * c], tuple(logits))


EXTRA_COLUMNS: Mapping[str, Callable[[BehaviorSpec], Column]] = {ACTION_HEADS: action_heads_column}
"""By name: the column that a behaviour's policies add."""


def check_extra_columns(names: Iterable[str], asker: str) -> None:
    """Check that policies give the columns of these names.

    Args:
        names: those asked for.
        asker: who asks, for the message.

    Raises:
        LoadError: naming those that no policy gives, and those that they do.
    """
    unknown = [name for name in names if name not in EXTRA_COLUMNS]
    if not unknown:
        return
    message = (
        f"{asker} asks for the columns {', '.join(unknown)}, which no policy gives; extra_columns may name "
        f"{', '.join(EXTRA_COLUMNS)}, while actions, log_probs and (where choices may be forbidden) action_masks are "
        "always there"
    )
    if VALUES in unknown:
        message += (
            "; actors have the acting part of a network alone, so a baseline is for the trainer to compute and to "
            "keep, when it first learns from a row"
        )
    raise LoadError(message)


def require_columns(batch: TrajectoryBatch, columns: Iterable[Column]) -> None:
    """Check that the rows of a batch have these columns.

    Raises:
        StageError: naming the first that is missing, or of another dtype or shape.
    """
    for column in columns:
        given = batch.rows.get(column.name)
        if given is None or given.dtype != column.dtype or given.shape[1:] != column.shape:
            got = "trajectories without it" if given is None else f"{given.dtype} {given.shape[1:]}"
            raise StageError(
                f"{batch.behavior_id}: the trainer asks for the column {column.name} of each decision, "
                f"{column.dtype} {column.shape}, and got {got}. A recording has it if its run had this trainer_type "
                "with these hyperparameters and played no .onnx model: record again so. Custom stages must pass it on; "
                "a trainer class that changes its base's hyperparameters must name it in extra_columns"
            )
