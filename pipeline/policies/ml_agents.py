"""ML-Agents checkpoints (`<Behavior>/checkpoint.pt`): converts their PPO and SAC MLPs for Headrace's trainers.

A checkpoint contains a torch `state_dict` for each module: `Policy` is the actor, `global_step` is the step count, and
`Optimizer:<name>` is a critic or an Adam optimizer. An Adam optimizer identifies parameters only by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import NetworkSettings
from headrace.config.paths import file_name
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import NEWEST, exports_by_step, is_export
from headrace.pipeline.policies.tensor_file import read_tensors
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.messages import Array, PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError, error_summary
from headrace.stages.policy.design import NORMALIZER_INVERSE_STD, NORMALIZER_MEAN, PolicyDesign
from headrace.stages.policy.observations import ObservationLayout

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
        value = self._named.get(f"{_ACTIONS}log_sigma")
        return None if value is None else value.reshape(-1)

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


def as_ppo(modules: Modules, signals: Sequence[str], parameters: Named) -> dict[str, Array]:
    """Return the parameters for Headrace's `ActorCritic`; a shared critic uses the actor's layers."""
    actor, critic = (MLAgentsNetwork(modules[name]) for name in ("Policy", "Optimizer:critic"))
    shared = bool(actor.signals)
    if shared != (len(parameters["body.0.weight"]) == 1):
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


def as_sac(modules: Modules, signals: Sequence[str], networks: Mapping[str, Named]) -> dict[str, Named]:
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
    if any(name.startswith("value.") for name in networks["critics"]):
        value = modules["Optimizer:value_network"]
        critics |= _as_value(value, signals, "value.")
        taken["target"] = _as_value(modules.get("Optimizer:target_network", value), signals)  # no optimizer trains it
    if COEFFICIENTS in modules:
        both = [modules[COEFFICIENTS][name] for name in ("continuous", "discrete")]
        taken[COEFFICIENTS] = {"logs": np.concatenate(both)[-len(networks[COEFFICIENTS]["logs"]) :]}
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
    normalizers: dict[int, dict[str, Array]] = {}
    for name, value in policy.items():
        if match := _NORMALIZER.fullmatch(name):
            normalizers.setdefault(int(match[1]), {})[match[2]] = value
    if not normalizers:
        return None
    parts = [normalizers[number] for number in sorted(normalizers)]
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
        supported = _LAYER.fullmatch(f"{name.rpartition('.')[0]}.weight") or _NORMALIZER.fullmatch(name)
        if supported or name.startswith((_ACTIONS, "action_model._discrete_distribution.branches.", _VALUE)):
            continue
        if not _CONSTANT.fullmatch(name):
            what = next((what for part, what in _BEYOND_PERCEPTRONS.items() if part in name), "other layers")
            raise StageError(
                f"its policy is not a plain MLP over vector observations, because it has {what} ({name}); only "
                "plain ML-Agents MLPs can be trained further. Play its .onnx file with --inference"
            )


_TRAINERS = {"Optimizer:q_network": "sac", "Optimizer:adam": "poca", "Optimizer:value_optimizer": "ppo"}
"""Trainer types, keyed by the module that identifies a checkpoint of this type. The first module found in the file
decides."""
_LEARNED: dict[str, dict[str, tuple[str, ...]]] = {
    "ppo": {"Optimizer:value_optimizer": ("Policy", "Optimizer:critic")},
    "sac": {
        "Optimizer:policy_optimizer": ("Policy",),
        "Optimizer:value_optimizer": ("Optimizer:q_network", "Optimizer:value_network"),
        "Optimizer:entropy_optimizer": (COEFFICIENTS,),
    },
}
"""The modules whose parameters an Adam optimizer numbers, in number order, keyed by trainer type and optimizer."""


def left_checkpoint(run_folder: Path, behavior: str) -> Path | None:
    """Return the checkpoint from which ML-Agents would resume a behaviour; None if there is none.

    If Headrace overwrote `checkpoint.pt`, this is the newest ML-Agents checkpoint with a step in its name.
    """
    folder = behavior_folder(run_folder, behavior)
    candidates = [folder / NEWEST, *reversed(exports_by_step(folder, behavior))]
    return next((path for path in candidates if path.is_file() and not is_export(path)), None)


def left_steps(run_folder: Path, but: Iterable[str] = ()) -> dict[str, int]:
    """Return the step of each ML-Agents checkpoint in a run's folder, keyed by the name of the behaviour's folder.

    Args:
        run_folder: `results/<run-id>`.
        but: behaviours to skip, because they resume from a different checkpoint.

    Raises:
        RunError: if a checkpoint can't be resumed from; the message names the checkpoint.
    """
    passed = {file_name(name) for name in but}
    names = sorted(path.parent.name for path in run_folder.glob(f"*/{NEWEST}"))
    checkpoints = {name: left_checkpoint(run_folder, name) for name in names if name not in passed}
    try:
        return {name: MLAgentsCheckpoint(path).step for name, path in checkpoints.items() if path is not None}
    except StageError as error:
        raise RunError(f"--resume: {error}") from error


@contextmanager
def _taking_over() -> Iterator[None]:
    """Raise a `StageError` that calls the file incomplete if an entry is missing or has the wrong shape."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise StageError(f"it is incomplete ({error_summary(error)})") from error


class MLAgentsCheckpoint:
    """An ML-Agents checkpoint of one behaviour.

    Attributes:
        step: number of agent steps for which the policy was trained.
        trainer_type: `ppo`, `sac` or `poca`.
        squashed: True if continuous actions are squashed by tanh, as in SAC.
        unused: names of the networks that Headrace's trainers can't use, which are those of reward signals.

    Raises:
        StageError: if the file can't be read, is not an ML-Agents checkpoint, or its actor is not an MLP.
    """

    def __init__(self, path: Path) -> None:
        content = _read(path)
        try:
            self.trainer_type = next(kind for module, kind in _TRAINERS.items() if module in content)
            (step,) = content["global_step"].values()
            self.step = int(step.item())
            self._adams = {name: part for name, part in content.items() if "param_groups" in part}
            self._weights = {
                name: {key: array.view() for key, array in part.items()}  # raises an error for anything but arrays
                for name, part in content.items()
                if name not in self._adams
            }
            policy = self._weights["Policy"]
            check_perceptron(policy)
            self._actor = MLAgentsNetwork(policy)
            self._normalizer = normalizer_of(policy)
        except StageError as error:
            raise StageError(f"{path}: {error}") from error
        except (StopIteration, KeyError, TypeError, ValueError, AttributeError) as error:
            raise StageError(f"{path} is not an ML-Agents checkpoint of ppo, sac or poca") from error
        self.squashed = self._actor.squashed
        self.unused = [name.removeprefix("Module:") for name in self._weights if name.startswith("Module:")]

    def design(self, behavior: str) -> PolicyDesign:
        """Return the actor's design, derived from its tensors; all vector observations are treated as a single one."""
        continuous, branches = self._actor.actions
        inputs = self._actor.layers[0][0].shape[1]
        actions = ActionSpec(continuous, branches, bool(branches))
        spec = BehaviorSpec(behavior, (ObservationSpec("vector", (inputs,)),), actions)
        widths = tuple(len(weight) for weight, _ in self._actor.layers)
        settings = NetworkSettings(hidden_units=widths, normalize=self._normalizer is not None)
        return PolicyDesign(spec, settings, self.squashed)

    def check(self, design: PolicyDesign) -> None:
        """Check that the actor has this design.

        Raises:
            StageError: if the actor has a different design; the message describes both designs.
        """
        if not design.plain or design.settings.activation != "swish":
            raise StageError(
                "it holds an MLP over vector observations with swish activations; the behaviour's network has "
                "different layers (because of a memory, images, buffer sensors, a goal, or network or activation in "
                "network_settings)"
            )
        theirs, ours = _describe(self.design(design.spec.name)), _describe(design)
        if theirs != ours:
            raise StageError(
                f"it was trained with {theirs}; the behaviour now has {ours}. Restore the earlier observations, "
                "actions and network_settings"
            )

    @_taking_over()
    def acting_tensors(self) -> dict[str, Array]:
        """Return the tensors of the actor and its normaliser, keyed by their names in `PolicyUpdate.layout`."""
        tensors: dict[str, Array] = {}
        for number, (weight, bias) in enumerate(self._actor.layers):
            tensors[f"body.{number}.weight"], tensors[f"body.{number}.bias"] = weight.T, bias
        weight, bias = self._actor.action_heads
        tensors["action.weight"], tensors["action.bias"] = weight.T, bias
        if self._actor.log_sigma is not None:
            tensors["log_sigma"] = self._actor.log_sigma
        state = self._normalizer
        if state is not None:
            tensors[NORMALIZER_MEAN] = state["mean"].astype(np.float32)
            tensors[NORMALIZER_INVERSE_STD] = np.sqrt(state["steps"] / state["squares"]).astype(np.float32)
        return tensors

    def acting_policy(self, behavior: str) -> PolicyUpdate:
        """Return the actor and its normaliser as a `PolicyUpdate` for playing."""
        tensors = self.acting_tensors()
        weights = np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]).astype(np.float32)
        return PolicyUpdate(
            behavior, 0, weights, tuple((name, tensor.shape) for name, tensor in tensors.items()), self.step
        )

    @_taking_over()
    def warm_state(self, trainer_state: Mapping[str, Any], signals: Sequence[str]) -> dict[str, Any]:
        """Return the state for `Trainer.warm_start`: actor, critics and normaliser.

        Args:
            trainer_state: the trainer's `warm_state()`.
            signals: names of the trainer's reward signals, in the trainer's order.

        Raises:
            StageError: if the file's reward signals or parameters differ from those of the trainer.
        """
        self._check_signals(signals)
        normalizer = self._normalizer
        state = {} if normalizer is None else {"normalizer": normalizer}
        if self.trainer_type == "ppo":
            return {**state, "weights": as_ppo(self._weights, signals, trainer_state["weights"])}
        networks = trainer_state["networks"]
        return {**state, "networks": {**networks, **as_sac(self._weights, signals, networks)}}

    @_taking_over()
    def resumed_state(self, trainer_state: Mapping[str, Any], signals: Sequence[str]) -> dict[str, Any]:
        """Return the state for `Trainer.load_state_dict`: like `warm_state`, plus the step count and the optimizers.

        Args:
            trainer_state: the trainer's `state_dict()`, whose other entries are kept.
            signals: names of the trainer's reward signals, in the trainer's order.

        Raises:
            StageError: if the file's reward signals or parameters differ from those of the trainer.
        """
        self._check_signals(signals)
        moments = {"first_moment": self._moments("exp_avg"), "second_moment": self._moments("exp_avg_sq")}
        state = {**trainer_state, "step": self.step, "normalizer": self._normalizer}
        if self.trainer_type == "ppo":
            adapted = {name: as_ppo(moment, signals, trainer_state["weights"]) for name, moment in moments.items()}
            optimizer = {"steps": self._updates("Optimizer:value_optimizer"), **adapted}
            return {
                **state,
                "weights": as_ppo(self._weights, signals, trainer_state["weights"]),
                "optimizer": optimizer,
            }
        weights = trainer_state["update"]["weights"]
        taken = {name: as_sac(moment, signals, weights) for name, moment in moments.items()}
        adams = {"actor": "policy", "critics": "value", COEFFICIENTS: "entropy"}
        optimizers = {
            group: {
                "steps": self._updates(f"Optimizer:{adam}_optimizer"),
                **{name: moment[group] for name, moment in taken.items()},
            }
            for group, adam in adams.items()
        }
        return {
            **state,
            "update": {
                "weights": {**weights, **as_sac(self._weights, signals, weights)},
                "optimizers": optimizers,
            },
        }

    def _check_signals(self, signals: Sequence[str]) -> None:
        critic = self._weights["Optimizer:value_network" if self.trainer_type == "sac" else "Optimizer:critic"]
        theirs = MLAgentsNetwork(critic).signals
        if sorted(theirs) != sorted(signals):
            raise StageError(
                f"it was trained with reward_signals {', '.join(theirs)}; the behaviour now has {', '.join(signals)}"
            )

    def _moments(self, moment: str) -> dict[str, Named]:
        """Return an Adam moment (`exp_avg` or `exp_avg_sq`) of every parameter, by module and parameter name."""
        _, branches = self._actor.actions
        # The file has the moments of the coefficients but not the coefficients themselves.
        coefficients = {"discrete": np.zeros(len(branches), np.float32), "continuous": np.zeros(1, np.float32)}
        modules = {**self._weights, COEFFICIENTS: coefficients}
        moments: dict[str, dict[str, Array]] = {}
        for adam, learned in _LEARNED[self.trainer_type].items():
            state, numbers = self._adams[adam]["state"], self._adams[adam]["param_groups"][0]["params"]
            parameters = [(module, name) for module in learned for name in parameters_of(modules[module])]
            if len(parameters) != len(numbers):  # a shared critic is the actor, so its parameters are numbered once
                parameters = [(module, name) for module, name in parameters if module == "Policy"]
            for number, (module, name) in zip(numbers, parameters, strict=True):
                weight = modules[module][name]
                kept = state[number][moment] if number in state else np.zeros_like(weight)
                moments.setdefault(module, {})[name] = kept.reshape(weight.shape)
        return {"Optimizer:critic": moments["Policy"], **moments}

    def _updates(self, adam: str) -> int:
        return max((int(np.asarray(state["step"]).item()) for state in self._adams[adam]["state"].values()), default=0)


def _describe(design: PolicyDesign) -> str:
    """Describe the sizes of a policy's observations, network and actions, all of which a checkpoint must have too."""
    settings, actions = design.settings, design.spec.actions
    inputs, widths = ObservationLayout(design.spec).vector_size, settings.widths
    units = ", ".join(map(str, widths if len(set(widths)) > 1 else widths[:1]))
    layers = f"{len(widths)} hidden layer{'s' * (len(widths) > 1)} of {units} units"
    seen = f"{inputs} number{'s' * (inputs > 1)} ({'' if settings.normalize else 'not '}normalised)"
    return f"{seen}, {layers}, {ActionSpec(actions.continuous_size, actions.discrete_branches)}"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = read_tensors(path)
    except (OSError, ValueError) as error:
        raise StageError(str(error)) from error
    return content if isinstance(content, Mapping) else {}
