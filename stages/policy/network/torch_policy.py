"""The acting policy that runs an actor as a torch module, for designs that are not plain.

Designs that are not plain have images, sets, goals, memories or a custom network; plain designs run faster in
`numpy_policy`. Both policies sample actions in NumPy, with `sampling`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.queues.messages import Array, Floats, PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.policy.design import (
    NORMALIZER_INVERSE_STD,
    NORMALIZER_MEAN,
    NORMALIZER_REST,
    PolicyDesign,
    check_tensors,
    policy_layout,
)
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.network.body import ActorNetwork, untrained_actor
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout, normalize
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.policy.sampling import ActionSampler, check_heads, noise_size


class TorchPolicy:
    """An `ActingPolicy` for one behaviour id with the weights of a `PolicyUpdate`.

    On a CPU, the policy uses a single thread regardless of torch's setting, because actors' batches are small and other
    processes need the cores.

    Args:
        design: the policy's design.
        device: the torch device to compute on.

    Attributes:
        memory_size: m, the size of an agent's memory; 0 without memory.
        previous_action_size: P, the width of the previous action; 0 without memory.
        version: the version of the loaded weights; -1 before the first call to `load`.

    Raises:
        StageError: if an observation can't be learned from, or the design's network can't be built for it.
        LoadError: if the design names a custom network that can't be loaded.
    """

    def __init__(self, design: PolicyDesign, device: str = "cpu") -> None:
        self._design, self._device = design, device
        self._layout = policy_layout(design)
        self._observations = ObservationLayout(design.spec)
        self._sampler = ActionSampler(design)
        self._actor: ActorNetwork | None = None  # until a policy has weights for it
        self._normalizer: Normalized | None = None
        self.memory_size = design.memory_size + noise_size(design, self._layout)
        self.previous_action_size = design.previous_action_size
        self.version = -1

    def load(self, update: PolicyUpdate) -> None:
        """See `ActingPolicy.load`."""
        about = f"{update.behavior_id}: policy version {update.version} does not fit this network"
        check_tensors(about, update.layout, self._layout)
        tensors = update.tensors()
        self._actor = self._actor or untrained_actor(self._design).to(self._device)
        self._actor.load_acting(tensors)
        self._normalizer = normalizer_of(tensors) or self._normalizer
        self._sampler.adopt(update, tensors["log_sigma"].copy() if "log_sigma" in tensors else None)
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
        recall = recall or nothing_recalled(self, self._design.spec.actions, len(observations[0]))
        heads, encoding, memories = self.heads(observations, recall)
        return self._sampler.decide(heads, encoding, masks, random, deterministic, recall, memories)

    def heads(
        self, observations: tuple[Array, ...], recall: Recall | None = None
    ) -> tuple[Floats, Floats, Floats | None]:
        """Return head outputs [d, H], the last hidden layer's outputs [d, features], and new memories [d, m] or None.

        Raises:
            NotFiniteError: if a head output is NaN or infinite.
            StageError: if no policy is loaded yet.
        """
        m = self._design.memory_size
        if self._actor is None:
            raise StageError(f"{self._design.spec.behavior_id}: no policy has been loaded")
        if not len(observations[0]):  # torch's layers reject empty batches
            sizes = self._design.head_size, self._actor.action.in_features, m
            heads, encoding, memories = (np.empty((0, size), np.float32) for size in sizes)
            return heads, encoding, memories if m else None
        encoded = encoded_as_seen(self._observations, self._normalizer, observations)
        with torch.inference_mode(), one_thread():
            inputs = Inputs.from_encoded(encoded, self._device)
            if recall is not None and m:
                inputs = inputs._replace(
                    previous_actions=torch.from_numpy(recall.previous_actions).to(self._device),
                    memories=torch.from_numpy(recall.memories[:, :m]).to(self._device),
                )
            hidden, after = self._actor.body(inputs)
            heads = self._actor.heads(hidden).cpu().numpy()
        check_heads(self._design.spec.behavior_id, self.version, heads, observations)
        return heads, hidden.cpu().numpy(), None if after is None else after.cpu().numpy()


Normalized = tuple[Array, Floats]
"""The normaliser's mean and 1/std for the vectors."""


def normalizer_of(tensors: Mapping[str, Array]) -> Normalized | None:
    """Return the normaliser from a policy's tensors; None if the policy has none."""
    if NORMALIZER_MEAN not in tensors:
        return None
    mean = tensors[NORMALIZER_MEAN].copy()
    if NORMALIZER_REST in tensors:
        mean = mean + tensors[NORMALIZER_REST].astype(np.float64)
    return mean, tensors[NORMALIZER_INVERSE_STD].copy()


def encoded_as_seen(
    layout: ObservationLayout, normalizer: Normalized | None, observations: tuple[Array, ...]
) -> EncodedObservations:
    """Encode d agents' observations, one array [d, *shape] each, as network inputs; normalise them if needed."""
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = layout.encode(observations)
        if normalizer is None:
            return encoded
        vectors = np.empty(encoded.vectors.shape, np.float32) if layout.exact else encoded.vectors
        normalize(encoded.vectors, *normalizer, vectors)
        return EncodedObservations(vectors, encoded.others)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, then restore torch's setting, because an inline learner may share the process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
