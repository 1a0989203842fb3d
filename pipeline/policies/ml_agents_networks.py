"""Converts the MLPs in ML-Agents checkpoints to the parameters of Headrace's networks.

Every function accepts either weights or one of Adam's moments, because both use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.queues.messages import Array
from headrace.stages.errors import StageError

Named = Mapping[str, Array]
"""A module's parameters, or one Adam moment of each parameter, keyed by ML-Agents' parameter names."""
Modules = Mapping[str, Named]

COEFFICIENTS = "coefficients"
"""Headrace's name for SAC's entropy coefficients, a module that ML-Agents does not save."""

_LAYER = re.compile(r"network_body\.(?:_body_endoder|linear_encoder)\.seq_layers\.(\d+)\.weight")
_NORMALIZER = re.compile(r"(?:.*\.)?network_body\.(?:observation_encoder\.)?processors\.(\d+)\.normalizer\.(\w+)")
_ACTIONS = "action_model._continuous_distribution."
_BRANCH = re.compile(r"action_model\._discrete_distribution\.branches\.\d+\.weight")
_VALUE = "value_heads.value_heads."
_CONSTANT = re.compile(r"version_number|memory_size_vector|is_continuous_int\w*|\w*act_size_vector\w*")
_BEYOND_PERCEPTRONS = {
    "lstm": "a memory",
    "hyper": "a goal signal",
    "rsa": "buffer sensors",
    "self_ent": "buffer sensors",
    "processors": "images",
}
"""Unsupported features, keyed by a substring of parameter names that reveals the feature. The first match counts."""


class MLAgentsNetwork:
    """An ML-Agents module: its hidden layers and heads, each as (weight [out, in], bias [out])."""

    def __init__(self, named: Named) -> None:
        self._named = named
        numbers = sorted((int(match[1]), name) for name in named if (match := _LAYER.fullmatch(name)))
        self.layers = [self._linear(name.removesuffix(".weight")) for _, name in numbers]

    @property
    def actions(self) -> tuple[int, tuple[int, ...]]:
        """Number of continuous actions, and number of choices in each discrete branch."""
        means = self._named.get(f"{_ACTIONS}mu.bias", np.empty(0))
        return len(means), tuple(len(self._named[name]) for name in self._branches)

    @property
    def action_heads(self) -> tuple[Array, Array]:
        """Weights and biases of the action heads: means, log σ if state-dependent, then each branch's logits."""
        heads = [f"{_ACTIONS}{name}" for name in ("mu", "log_sigma") if f"{_ACTIONS}{name}.weight" in self._named]
        return self._side_by_side([*heads, *(name.removesuffix(".weight") for name in self._branches)])

    @property
    def log_sigma(self) -> Array | None:
        """Log σ [C] of the C continuous actions; None if C is 0 or if log σ depends on the state."""
        found = self._named.get(f"{_ACTIONS}log_sigma")
        return None if found is None else found.reshape(-1)

    @property
    def squashed(self) -> bool:
        """True if log σ depends on the state, as in SAC."""
        return f"{_ACTIONS}log_sigma.weight" in self._named

    @property
    def signals(self) -> list[str]:
        """Names of the reward signals whose values the module predicts; empty for an actor without a shared critic."""
        return [name.split(".")[2] for name in self._named if name.startswith(_VALUE) and name.endswith(".weight")]

    def value_heads(self, signals: Sequence[str]) -> tuple[Array, Array]:
        """Return the concatenated weights and biases of the signals' value heads."""
        return self._side_by_side([f"{_VALUE}{signal}" for signal in signals])

    @property
    def _branches(self) -> list[str]:
        return [name for name in self._named if _BRANCH.fullmatch(name)]

    def _linear(self, name: str) -> tuple[Array, Array]:
        return self._named[f"{name}.weight"], self._named[f"{name}.bias"]

    def _side_by_side(self, names: Iterable[str]) -> tuple[Array, Array]:
        weights, biases = zip(*map(self._linear, names), strict=True)
        return np.concatenate(weights), np.concatenate(biases)


def as_ppo(modules: Modules, signals: Sequence[str], own: Named) -> dict[str, Array]:
    """Return the parameters for Headrace's `ActorCritic`; a shared critic uses the actor's layers."""
    actor, critic = (MLAgentsNetwork(modules[name]) for name in ("Policy", "Optimizer:critic"))
    shared = bool(actor.signals)
    if shared != (len(own["body.0.weight"]) == 1):
        raise StageError(f"it was trained with hyperparameters.shared_critic: {str(shared).lower()}")
    towers = [actor.layers] if shared else [actor.layers, critic.layers]
    tensors: dict[str, Array] = {}
    for number, layers in enumerate(zip(*towers, strict=True)):
        tensors[f"body.{number}.weight"] = np.stack([weight.T for weight, _ in layers])
        tensors[f"body.{number}.bias"] = np.stack([bias[None] for _, bias in layers])
    for name, (weight, bias) in {"action": actor.action_heads, "value": critic.value_heads(signals)}.items():
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = weight.T, bias
    if actor.log_sigma is not None:
        tensors["log_sigma"] = actor.log_sigma
    return tensors


def as_sac(modules: Modules, signals: Sequence[str], own: Mapping[str, Named]) -> dict[str, Named]:
    """Return the parameters for `SACUpdate`'s networks, and the entropy coefficients if `modules` has them.

    If Headrace's SAC has no V network, its targets are copies of both Q networks, as at the start of training.
    """
    actor = MLAgentsNetwork(modules["Policy"])
    of_actor = _as_module(actor.layers, "action", actor.action_heads)
    critics: dict[str, Array] = {}
    for q in ("q1", "q2"):
        prefix = f"{q}_network."
        inside = modules["Optimizer:q_network"].items()
        named = {name.removeprefix(prefix): value for name, value in inside if name.startswith(prefix)}
        critics |= _as_value(named, signals, f"{q}.")
    taken: dict[str, Named] = {"actor": of_actor, "critics": critics, "target": critics}
    if any(name.startswith("value.") for name in own["critics"]):
        value = modules["Optimizer:value_network"]
        critics |= _as_value(value, signals, "value.")
        taken["target"] = _as_value(modules.get("Optimizer:target_network", value), signals)  # no optimizer trains it
    if COEFFICIENTS in modules:
        both = [modules[COEFFICIENTS][name] for name in ("continuous", "discrete")]
        taken[COEFFICIENTS] = {"logs": np.concatenate(both)[-len(own[COEFFICIENTS]["logs"]) :]}
    return taken


def _as_value(named: Named, signals: Sequence[str], prefix: str = "") -> dict[str, Array]:
    network = MLAgentsNetwork(named)
    return _as_module(network.layers, "head", network.value_heads(signals), prefix)


def _as_module(
    layers: Iterable[tuple[Array, Array]], head: str, outputs: tuple[Array, Array], prefix: str = ""
) -> dict[str, Array]:
    """Return the parameters for a Headrace module that has a `body` and one head."""
    tensors: dict[str, Array] = {}
    for number, (weight, bias) in enumerate(layers):
        at = f"{prefix}body.layers.{2 * number}"  # an activation follows each layer
        tensors[f"{at}.weight"], tensors[f"{at}.bias"] = weight, bias
    tensors[f"{prefix}{head}.weight"], tensors[f"{prefix}{head}.bias"] = outputs
    return tensors


def normalizer_of(policy: Named) -> dict[str, Any] | None:
    """Return one normaliser, merged from the actor's normalisers (critics have copies); None if the actor has none."""
    found: dict[int, dict[str, Array]] = {}
    for name, value in policy.items():
        if match := _NORMALIZER.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    if not found:
        return None
    parts = [found[number] for number in sorted(found)]
    steps = max(int(part["normalization_steps"]) for part in parts)
    return {
        "steps": steps,
        "mean": np.concatenate([part["running_mean"] for part in parts]).astype(np.float64),
        "squares": np.concatenate(
            [part["running_variance"] * (steps / int(part["normalization_steps"])) for part in parts]
        ).astype(np.float64),
    }


def parameters_of(named: Named) -> list[str]:
    """Return the parameter names in a `state_dict`, except the normaliser's tensors: these are torch buffers."""
    return [name for name in named if not _NORMALIZER.fullmatch(name)]


def check_perceptron(policy: Named) -> None:
    """Check that an actor is an MLP over vector observations.

    Raises:
        StageError: if the actor has any other feature; the message names the feature.
    """
    for name in policy:
        known = _LAYER.fullmatch(f"{name.rpartition('.')[0]}.weight") or _NORMALIZER.fullmatch(name)
        if known or name.startswith((_ACTIONS, "action_model._discrete_distribution.branches.", _VALUE)):
            continue
        if not _CONSTANT.fullmatch(name):
            what = next((what for part, what in _BEYOND_PERCEPTRONS.items() if part in name), "other layers")
            raise StageError(
                f"its policy is not a plain MLP over vector observations, because it has {what} ({name}); only "
                "plain ML-Agents MLPs can be trained further. Play its .onnx file with --inference"
            )
