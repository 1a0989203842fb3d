"""From action heads to the actions that Unity receives, as ONNX nodes: drawn ones, and deterministic ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.actions import ACTION_LIMIT, first_action_features
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.layout import branch_slices
from headrace.stages.policy.onnx.contract import FORBIDDEN
from headrace.stages.policy.onnx.graph import Graph
from headrace.stages.policy.onnx.layers import array
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS

_INT64 = 7


@dataclass(frozen=True)
class ActionValues:
    """Actions as the environment receives them."""

    continuous: str | None
    """[B, C]"""
    discrete: tuple[str, ...]
    """[B, 1] int64 of each branch."""


class ActionHeads:
    """Writes how actions follow from the heads of one design.

    Args:
        graph: the model under construction.
        design: of the policy.
        log_sigma: [C] of a Gaussian that is not squashed, None for others.
        masks: the input with the masks [B, choices], 1 = allowed; None without discrete actions, or where nothing is
            drawn or chosen.
    """

    def __init__(self, graph: Graph, design: PolicyDesign, log_sigma: Tensor | None, masks: str | None) -> None:
        self._graph = graph
        self._design = design
        self._sigma = None if log_sigma is None else np.exp(array(log_sigma))
        self._branches = branch_slices(design.spec)
        choices = design.spec.actions.mask_size
        self._masks: list[tuple[str, str]] = []
        for branch in self._branches:
            if masks is None:
                break
            allowed = graph.columns(masks, branch.start, branch.stop, choices)
            self._masks.append((allowed, graph.add(graph.multiply(allowed, FORBIDDEN), -FORBIDDEN)))

    def act(self, heads: str, deterministic: bool) -> ActionValues:
        """Actions by heads [B, H]: drawn ones, or the mean and the most likely choice."""
        return ActionValues(
            self._continuous(heads, deterministic) if self._design.spec.actions.continuous_size else None,
            tuple(self._choice(heads, index, deterministic) for index in range(len(self._branches))),
        )

    def means(self, heads: str) -> str:
        """The continuous actions [B, C] that a deterministic policy gives."""
        return self._continuous(heads, deterministic=True)

    def logits(self, heads: str, index: int) -> str:
        """The logits [B, choices] of a branch, of forbidden choices too."""
        branch = self._branches[index]
        first = self._design.head_size - self._design.spec.actions.mask_size
        return self._head(heads, first + branch.start, first + branch.stop)

    def features(self, acted: ActionValues) -> str:
        """Actions as in `action_features`, minus `first_action_features`: [B, P].

        So the zeros with which Unity begins an episode stand for the latter.
        """
        graph, spec = self._graph, self._design.spec.actions
        parts = [acted.continuous] if acted.continuous is not None else []
        for size, choice in zip(spec.discrete_branches, acted.discrete, strict=True):
            one_hots: NDArray[np.float32] = np.eye(size, dtype=np.float32)
            chosen = graph.node("Gather", graph.constant(one_hots - one_hots[0]), choice, axis=0)
            parts.append(graph.reshape(chosen, -1, size))
        return graph.beside(parts)

    def before(self, features: str) -> str:
        """The inverse of `features`: the previous action as an input of the network."""
        return self._graph.add(features, first_action_features(self._design.spec.actions))

    def _head(self, heads: str, start: int, stop: int) -> str:
        return self._graph.columns(heads, start, stop, self._design.head_size)

    def _continuous(self, heads: str, deterministic: bool) -> str:
        graph, size = self._graph, self._design.spec.actions.continuous_size
        drawn = self._head(heads, 0, size)
        if not deterministic:
            noise = graph.node("RandomNormalLike", drawn, dtype=1, mean=0.0, scale=1.0)
            if self._sigma is not None:
                noise = graph.multiply(noise, self._sigma)
            else:
                log_sigma = graph.clip(self._head(heads, size, 2 * size), *LOG_SIGMA_LIMITS)
                noise = graph.node("Mul", noise, graph.node("Exp", log_sigma))
            drawn = graph.node("Add", drawn, noise)
        if self._design.squashed:
            return graph.node("Tanh", drawn)
        return self._given(drawn)

    def _given(self, drawn: str) -> str:
        """Actions for the environment from those of a Gaussian that is not squashed; see `environment_actions`."""
        graph, spec = self._graph, self._design.spec.actions
        limit = graph.constant(np.float32(ACTION_LIMIT))
        given = graph.node("Div", graph.clip(drawn, -ACTION_LIMIT, ACTION_LIMIT), limit)
        if not spec.unbounded:
            return given
        raw = np.zeros(spec.continuous_size, np.float32)
        raw[list(spec.unbounded)] = 1.0
        return graph.node("Add", graph.multiply(given, 1.0 - raw), graph.multiply(drawn, raw))

    def _choice(self, heads: str, index: int, deterministic: bool) -> str:
        graph, logits = self._graph, self.logits(heads, index)
        allowed, penalty = self._masks[index]
        logits = graph.node("Add", graph.node("Mul", logits, allowed), penalty)
        if deterministic:
            return graph.node("ArgMax", logits, axis=1, keepdims=1)
        # Multinomial takes logarithms of probabilities that need not sum to 1 in some runtimes, but must in others.
        log_probs = graph.node("LogSoftmax", logits, axis=1)
        return graph.node("Multinomial", log_probs, sample_size=1, dtype=_INT64)
