"""The acting policy of designs that are not plain: an `ActorNetwork` in torch, and the same sampling in NumPy.

These have images, sets, goals, memories or a network of the user's own; plain ones are cheaper in `numpy_policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.queues.messages import Array, Floats, PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.policy.actions import action_features, first_action_features
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.layout import NORMALIZER_INVERSE_STD, NORMALIZER_MEAN, check_layout, policy_layout
from headrace.stages.policy.network.actor import untrained_actor
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.normalizer import normalize
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.policy.sampling import ActionSampler, check_heads


class TorchPolicy:
    """Acts for one behaviour id: `ActingPolicy` with the weights of a `PolicyUpdate`.

    On a CPU it computes in one thread, whatever torch's setting: batches of actors are small, and other processes need
    cores.

    Args:
        design: what it is like.
        device: the torch device on which it computes.

    Attributes:
        memory_size: m, 0 without memory.
        previous_action_size: P, 0 without memory.
        version: of the loaded weights; -1 before the first `load`.

    Raises:
        StageError: if an observation can't be learned from, or the design's network can't be built for it.
        LoadError: if the design names a network of the user's own that can't be loaded.
    """

    def __init__(self, design: PolicyDesign, device: str = "cpu") -> None:
        self._device = device
        self._spec = design.spec
        self._layout = policy_layout(design)
        self._observations = ObservationLayout(design.spec)
        self._sampler = ActionSampler(design)
        self._actor = untrained_actor(design).to(device)
        self._normalizer: tuple[Floats, Floats] | None = None
        self.memory_size = design.memory_size
        self.previous_action_size = design.previous_action_size
        self.version = -1

    def load(self, update: PolicyUpdate) -> None:
        """See `ActingPolicy.load`."""
        check_layout(update, self._layout)
        tensors = update.tensors()
        self._actor.load_acting(tensors)
        if NORMALIZER_MEAN in tensors:
            self._normalizer = (tensors[NORMALIZER_MEAN].copy(), tensors[NORMALIZER_INVERSE_STD].copy())
        if self._actor.log_sigma is not None:
            self._sampler.load(self._actor.log_sigma.detach().cpu().numpy().copy())
        self._sampler.adopt(update)
        self.version = update.version

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        if recall is None and self.memory_size:
            recall = self._nothing_recalled(len(observations[0]))
        heads, memories = self.heads(observations, recall)
        given, columns = self._sampler.sample(heads, masks, random, deterministic)
        if recall is None or memories is None:
            return Decision(given, columns)
        columns["memories"] = recall.memories
        return Decision(
            given, columns, Recall(memories, action_features(self._spec.actions, given.continuous, given.discrete))
        )

    def heads(self, observations: tuple[Array, ...], recall: Recall | None = None) -> tuple[Floats, Floats | None]:
        """The action heads [d, H] (see `PolicyDesign.head_size`), and the memories [d, m] after them (None without).

        Raises:
            NotFiniteError: if the heads are NaN or infinite.
            StageError: if no policy was loaded yet.
        """
        if self.version < 0:
            raise StageError(f"{self._spec.behavior_id}: no policy was loaded to act with")
        if not len(observations[0]):  # layers of torch refuse empty batches
            nobody = np.empty((0, self._actor.action.out_features), np.float32)
            return nobody, np.empty((0, self.memory_size), np.float32) if self.memory_size else None
        with np.errstate(over="ignore", invalid="ignore"):
            encoded = self._observations.encode(observations)
            if self._normalizer is not None:
                normalize(encoded.vectors, *self._normalizer, encoded.vectors)
        with torch.inference_mode(), _one_thread():
            inputs = Inputs.from_encoded(encoded, self._device)
            if recall is not None:
                inputs = inputs._replace(
                    previous_actions=torch.from_numpy(recall.previous_actions).to(self._device),
                    memories=torch.from_numpy(recall.memories).to(self._device),
                )
            found, after = self._actor(inputs)
        heads: Floats = found.cpu().numpy()
        check_heads(self._spec.behavior_id, self.version, heads, observations)
        return heads, None if after is None else after.cpu().numpy()

    def _nothing_recalled(self, count: int) -> Recall:
        first = first_action_features(self._spec.actions)
        return Recall(np.zeros((count, self.memory_size), np.float32), np.tile(first, (count, 1)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread and restore the setting, as an inline learner may share the process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
