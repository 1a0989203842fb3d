"""The action outputs of a model that is played: which of them are asked for, and what they mean.

In version 3 of the format they hold actions: sampled ones, and since ML-Agents 0.28 deterministic ones beside them. In
version 2 continuous actions are sampled ones, and discrete ones are the log-probabilities of all choices, from which
the player draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.layout import MASK_PENALTY
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.runtime import whole_numbers
from headrace.stages.policy.sampling import sample_categorical

METADATA = (contract.CONTINUOUS_SIZE, contract.DISCRETE_SIZES, contract.IS_CONTINUOUS)
ACTIONS = (contract.CONTINUOUS, contract.DISCRETE, contract.ACTION)


class ActionOutputs:
    """The action outputs of a model.

    Args:
        version: of the model's format.
        on_zeros: the outputs of `METADATA` and `ACTIONS` for one agent, as far as the model has them.
        outputs: names of all that the model has.
        actions: of the environment.
        where: behaviour and file, for messages.

    Raises:
        StageError: if the model was made for other actions, or lacks one of their outputs.
    """

    def __init__(
        self,
        version: int,
        on_zeros: Mapping[str, Array],
        outputs: Sequence[str],
        actions: ActionSpec,
        where: str,
    ) -> None:
        self._logits = version < contract.VERSION
        self._outputs = outputs
        self._actions = actions
        self._where = where
        self._continuous, self._discrete = contract.CONTINUOUS, contract.DISCRETE
        if self._logits:
            self._choose(on_zeros)
            self._check_widths(on_zeros)
        else:
            self._check_sizes(on_zeros)
        self.names()

    def names(self, deterministic: bool = False) -> list[str]:
        """Return the outputs to ask for: that of continuous actions, then that of discrete ones.

        Raises:
            StageError: if the model lacks one; without deterministic ones it can't be played deterministically.
        """
        names = []
        if self._actions.continuous_size:
            names.append(contract.DETERMINISTIC_CONTINUOUS if deterministic else self._continuous)
        if self._actions.discrete_branches:
            names.append(contract.DETERMINISTIC_DISCRETE if deterministic and not self._logits else self._discrete)
        lacking = [name for name in names if name not in self._outputs]
        if lacking and deterministic:
            raise StageError(
                f"{self._where}: has no output {lacking[0]}, which deterministic play needs: the version of ML-Agents "
                "that exported it wrote sampled actions alone; play it without --deterministic "
                "(network_settings.deterministic), or export the policy again with a newer version"
            )
        if lacking:
            raise StageError(f"{self._where}: has no output {lacking[0]}, only {', '.join(self._outputs)}")
        return names

    def read(
        self,
        found: Sequence[Array],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool,
    ) -> ActionBatch:
        """Return the actions of d agents, from the outputs [d, …] of `names`."""
        d, actions = len(found[0]), self._actions
        continuous = np.empty((d, actions.continuous_size), np.float32)
        discrete = np.empty((d, len(actions.discrete_branches)), np.int32)
        if actions.continuous_size:
            continuous[:] = found[0].reshape(d, -1)
        if actions.discrete_branches:
            last = found[-1].reshape(d, -1)
            discrete[:] = self._drawn(last, masks, random, deterministic) if self._logits else last
        return ActionBatch(continuous, discrete)

    def _drawn(
        self, logits: Floats, masks: NDArray[np.bool_] | None, random: np.random.Generator, deterministic: bool
    ) -> NDArray[np.intp]:
        """Draw a choice of each branch [d, branches] from log-probabilities [d, choices of all branches]."""
        if masks is not None:  # such models leave forbidden choices a probability of 1e-7
            logits = np.where(masks, logits, logits + MASK_PENALTY)
        branches = np.split(logits, np.cumsum(self._actions.discrete_branches)[:-1], axis=1)
        return np.stack([sample_categorical(branch, random, deterministic)[0] for branch in branches], axis=1)

    def _choose(self, on_zeros: Mapping[str, Array]) -> None:
        """Take the one output of all actions where its newer counterpart is missing.

        With discrete actions alone it comes first: some exporters wrote only the last branch into the newer one.
        """
        kind = on_zeros.get(contract.IS_CONTINUOUS)
        if kind is None or contract.ACTION not in self._outputs:
            return
        if not kind.any():
            self._discrete = contract.ACTION
        elif contract.CONTINUOUS not in self._outputs:
            self._continuous = contract.ACTION

    def _check_widths(self, on_zeros: Mapping[str, Array]) -> None:
        """Compare the widths of the outputs themselves: the model states the number of branches nowhere."""
        actions = self._actions
        theirs = (_size(on_zeros, self._continuous), _size(on_zeros, self._discrete))
        if theirs != (actions.continuous_size, actions.mask_size):
            raise StageError(
                f"{self._where}: was made for {theirs[0]} continuous actions and discrete branches of {theirs[1]} "
                f"choices in all, the environment has {actions.continuous_size} and {list(actions.discrete_branches)}"
            )

    def _check_sizes(self, on_zeros: Mapping[str, Array]) -> None:
        """Compare the sizes that the model states, or where it does not (see `Runtime`), those of its outputs."""
        actions = self._actions
        continuous = _size(on_zeros, contract.CONTINUOUS)
        if contract.CONTINUOUS_SIZE in on_zeros:
            continuous = max(0, whole_numbers(on_zeros[contract.CONTINUOUS_SIZE])[0])
        branches: tuple[int, ...] = ()
        if contract.DISCRETE_SIZES in on_zeros:
            branches = tuple(size for size in whole_numbers(on_zeros[contract.DISCRETE_SIZES]) if size > 0)
        elif _size(on_zeros, contract.DISCRETE) == len(actions.discrete_branches):
            branches = actions.discrete_branches
        theirs = (continuous, branches)
        if theirs != (actions.continuous_size, actions.discrete_branches):
            raise StageError(
                f"{self._where}: was made for {theirs[0]} continuous actions and discrete branches {list(theirs[1])}, "
                f"the environment has {actions.continuous_size} and {list(actions.discrete_branches)}"
            )


def _size(on_zeros: Mapping[str, Array], name: str) -> int:
    return on_zeros[name].size if name in on_zeros else 0
