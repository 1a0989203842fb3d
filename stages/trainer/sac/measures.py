"""What gradient steps of soft actor-critic measured: losses, values and entropies, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.trainer.replicas import Part, Replicas

LOSSES = ("Policy Loss", "Q1 Loss", "Q2 Loss", "Value Loss")


@dataclass(frozen=True, slots=True)
class UpdateMeasures:
    """Losses and values of one gradient step, on the device. Axis letters as in `losses`."""

    losses: Tensor
    """[4] by `LOSSES`."""
    q1: Tensor
    """[B, S] of the actions that were taken."""
    q2: Tensor
    targets: Tensor
    """[B, S] what both should be."""
    values: Tensor
    """[B, S] V's, or without V, the soft values that it would learn."""
    negentropies: Tensor
    """[B, G]"""
    mask: Tensor | None


def measures_of_all(
    found: Sequence[UpdateMeasures], replicas: Replicas, parts: Sequence[tuple[Part, int]]
) -> UpdateMeasures:
    """The measures of several gradient steps together; the losses are those of the last one.

    Args:
        found: of each step.
        replicas: those that have made the same steps.
        parts: of each step this replica's part of the minibatch's rows, and the number of these.
    """
    columns: list[list[Tensor]] = [[each.q1, each.q2, each.targets, each.values, each.negentropies] for each in found]
    masked = found[-1].mask is not None
    if masked:
        columns = [[*column, each.mask] for column, each in zip(columns, found, strict=True) if each.mask is not None]
    if replicas.size > 1:
        whole = [
            [tensor.new_zeros(rows, *tensor.shape[1:]) for tensor in column]
            for column, (_, rows) in zip(columns, parts, strict=True)
        ]
        for ours, of_all, (here, _) in zip(columns, whole, parts, strict=True):
            for tensor, target in zip(ours, of_all, strict=True):
                target[here.rows] = tensor * here.weight
        replicas.add_up(*(tensor for column in whole for tensor in column))
        columns = whole
    q1, q2, targets, values, negentropies, *mask = (torch.cat(each) for each in zip(*columns, strict=True))
    return UpdateMeasures(found[-1].losses, q1, q2, targets, values, negentropies, mask[0] if masked else None)


def spreads_of(measures: UpdateMeasures) -> tuple[dict[str, list[float]], list[float]]:
    """Minimum, mean and maximum of what was measured, by name, and the mean value of each signal; padding left out."""
    q1, log_probs = measures.q1, measures.negentropies.sum(dim=1)
    of_rows = torch.stack([q1, measures.q2, measures.values, (q1 - measures.targets).abs_()])
    if measures.mask is not None:
        real = measures.mask > 0
        of_rows, log_probs = of_rows[:, real], log_probs[real]
    # Together: each number that is fetched by itself costs as much as a layer, and there is an update every few steps.
    least, greatest = torch.aminmax(of_rows.flatten(1), dim=1)
    per_signal = of_rows.mean(dim=1)  # [4, S]
    ends = torch.stack([least, per_signal.mean(dim=1), greatest], dim=1)
    of_probs = torch.stack([log_probs.min(), log_probs.mean(), log_probs.max()])
    found = torch.cat([ends.flatten(), of_probs, per_signal[2]]).tolist()
    names = ("Q1", "Q2", "Value", "TD Error", "Log Probability")
    return {name: found[3 * at : 3 * at + 3] for at, name in enumerate(names)}, found[3 * len(names) :]


def statistics_of(measures: UpdateMeasures, signals: Sequence[str]) -> dict[str, float]:
    """What was measured, by the names of statistics, given those of the reward signals."""
    spreads, per_signal = spreads_of(measures)
    found = {
        f"Policy/{name} {kind}": number
        for name, numbers in spreads.items()
        for kind, number in zip(("Min", "Mean", "Max"), numbers, strict=True)
    }
    found["Policy/Entropy"] = -spreads["Log Probability"][1]
    return found | {f"Policy/{name.capitalize()} Value": mean for name, mean in zip(signals, per_signal, strict=True)}


def complaint(losses: NDArray[np.float32]) -> str:
    """Say which of the losses [k, 4] of k minibatches is not finite; if none is, the weights are not."""
    restored = "the weights are those before the update"
    bad = np.argwhere(~np.isfinite(losses))
    if not len(bad):
        return f"the last minibatch made weights NaN or infinite; {restored}"
    row, column = (int(i) for i in bad[0])
    return (
        f"the {LOSSES[column]} of minibatch {row + 1} of {len(losses)} is {losses[row, column]}; "
        f"{restored}. A lower learning_rate or smaller rewards often help"
    )
