"""A policy's design, which fully describes its structure, and what follows from it: decision columns and tensors.

Trainer and actors share the same design. A trainer requests further decision columns in `extra_columns`, on its class
or in its settings (docs/extending.md); `EXTRA_COLUMNS` lists the available ones, and `sampling.ActionSampler` fills
them in. The layout gives the names and shapes of the tensors, in the order of `PolicyUpdate.weights`; a policy with
a different layout is refused. Plain designs store matrices as [in, out], so a layer is `inputs @ weight + bias`; all
others store them as their torch modules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from headrace.config import BehaviorSettings, NetworkSettings
from headrace.config.errors import dotted
from headrace.config.network_settings import StateNoiseSettings
from headrace.queues.columns import Column, memory_column
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.loading import load_attribute
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer_lookup import asked_columns, squashes

Numbers = TypeVar("Numbers")
"""A NumPy array or a torch tensor."""

ACTION_HEADS = "action_heads"

VALUES = "values"
"""A column that other libraries' actors record; requesting it is refused with an explanation."""


class ActionDistributions(NamedTuple, Generic[Numbers]):
    """The distributions that actions were drawn from, for the rows of `action_heads`, of which these are views.

    For squashed continuous actions these are the Gaussians before the tanh: the KL divergence between two of them is
    that between the squashed distributions.
    """

    means: Numbers
    """[.., C] the means of the continuous actions."""
    log_sigmas: Numbers
    """[.., C] their log σ; for squashed actions clamped to `sampling.LOG_SIGMA_LIMITS`, as in sampling."""
    logits: tuple[Numbers, ...]
    """[.., choices] for each branch, before forbidden choices are masked; see `action_masks`."""


def action_heads_column(spec: BehaviorSpec) -> Column:
    """`action_heads` [.., 2·C + choices]: means, log sigmas (repeated if all states share them), then all logits."""
    actions = spec.actions
    return Column(ACTION_HEADS, "float32", (2 * actions.continuous_size + actions.mask_size,))


def split_action_heads(spec: BehaviorSpec, heads: Numbers) -> ActionDistributions[Numbers]:
    """Split `action_heads` [.., 2·C + choices], a tensor or an array, into its parts; views."""
    whole: Any = heads
    c = spec.actions.continuous_size
    logits = tuple(whole[..., 2 * c :][..., branch] for branch in branch_slices(spec))
    return ActionDistributions(whole[..., :c], whole[..., c : 2 * c], logits)


EXTRA_COLUMNS: Mapping[str, Callable[[BehaviorSpec], Column]] = {ACTION_HEADS: action_heads_column}
"""For each name, a function that returns the column for a behaviour."""


def check_extra_columns(names: Iterable[str], asker: str) -> None:
    """Check that policies can provide the columns with these names.

    Args:
        names: the columns that the trainer needs.
        asker: the trainer, for the message.

    Raises:
        LoadError: naming the columns that no policy provides, and the available ones.
    """
    unknown = [name for name in names if name not in EXTRA_COLUMNS]
    if not unknown:
        return
    message = (
        f"{asker} requests the columns {', '.join(unknown)}, which no policy provides; extra_columns can name "
        f"{', '.join(EXTRA_COLUMNS)}; actions, log_probs and (if choices can be masked) action_masks are always present"
    )
    if VALUES in unknown:
        message += (
            "; actors only have the acting part of a network, so the trainer must compute a baseline when it first "
            "learns from a row, and keep it"
        )
    raise LoadError(message)


def require_columns(batch: TrajectoryBatch, columns: Iterable[Column]) -> None:
    """Check that the rows of a batch have these columns.

    Raises:
        StageError: naming the first column that is missing, or has another dtype or shape.
    """
    for column in columns:
        values = batch.rows.get(column.name)
        if values is None or values.dtype != column.dtype or values.shape[1:] != column.shape:
            got = "no column of this name" if values is None else f"{values.dtype} {values.shape[1:]}"
            raise StageError(
                f"{batch.behavior_id}: the trainer needs the column {column.name} for each decision, {column.dtype} "
                f"{column.shape}, but got {got}. A recording has this column only if its run used this trainer_type "
                "with these hyperparameters and played no .onnx model: record again with these settings. Custom "
                "stages must pass the column on; a trainer class that changes its base's hyperparameters must name "
                "the column in extra_columns"
            )


FROM_UNITS = 128
"""Minimum number of rows and columns of a weight for which its matmul's provider and precision make a difference."""


@dataclass(frozen=True)
class ProductSettings:
    """How a learner computes its networks' matrix products; see `stages/policy/network/products`."""

    provider: str = "torch"
    """The library for float32 products on the CPU: a key of `products.PROVIDERS`, or `auto`, the fastest."""
    rows: int = 256
    """Minibatch size, for measuring which provider is fastest."""
    rounded_from: int = 0
    """Minimum rows and columns of a weight for which matmul inputs are rounded to bfloat16; 0 for never."""
    images_rounded: bool = False
    """Whether convolutions, and the layer after them, are computed in bfloat16."""


TORCHS_OWN = ProductSettings()
"""float32, multiplied by torch's default library."""
BF16 = ProductSettings(rounded_from=FROM_UNITS, images_rounded=True)
"""bfloat16 wherever it is faster."""


@dataclass(frozen=True)
class PolicyDesign:
    """A policy's spec, network settings, and distribution of continuous actions."""

    spec: BehaviorSpec
    settings: NetworkSettings
    squashed: bool = False
    """Continuous actions are the tanh of a Gaussian whose log σ depends on the state (SAC, and gSDE's `squash_output`),
    rather than a plain Gaussian with one log σ for all states that is clipped on output (PPO)."""
    folder: Path | None = None
    """The YAML's folder, which may hold a module with a custom network."""
    key: str = "network_settings"
    """Path of the settings in the behaviour's block of the YAML, for messages; reward signals have their own path."""
    extra_columns: tuple[str, ...] = ()
    """Names of the columns that the trainer needs: keys of `EXTRA_COLUMNS`."""
    products: ProductSettings = TORCHS_OWN
    """The learner's settings (`torch_settings.precision`, `.products`); acting and exported policies use defaults."""
    random_steps: int = 0
    """Trainer steps below which an acting policy draws uniform actions, except in deterministic play."""
    explores: bool = False
    """Whether an acting policy keeps gSDE's noise with its agents' memories; otherwise it draws new noise for each
    decision."""

    @property
    def plain(self) -> bool:
        """True if the policy is a feed-forward perceptron over vectors, which actors run in NumPy (`numpy_policy`)."""
        settings = self.settings
        return settings.memory is None and settings.network is None and ObservationLayout(self.spec).plain

    @property
    def perceptron(self) -> bool:
        """True if a plain perceptron's outputs are its action heads, so that gradients may be computed by hand."""
        return self.plain and self.gsde is None

    @property
    def of_critic(self) -> PolicyDesign:
        """Return the design for a critic with its own body."""
        settings = self.settings.of_critic
        return self if settings is self.settings else replace(self, settings=settings)

    @property
    def hypernetwork(self) -> bool:
        """True if goals, if any, generate the weights of the last hidden layer."""
        return self.settings.goal_conditioning_type == "hyper"

    @property
    def memory_size(self) -> int:
        """m, the size of an agent's memory; 0 without memory."""
        return 0 if self.settings.memory is None else self.settings.memory.memory_size

    @property
    def previous_action_size(self) -> int:
        """P, the width of the previous action as a network input; 0 for a policy without memory."""
        actions = self.spec.actions
        return actions.continuous_size + actions.mask_size if self.memory_size else 0

    @property
    def gsde(self) -> StateNoiseSettings | None:
        """The settings for state-dependent noise; None if it is off or there are no continuous actions."""
        return self.settings.gsde if self.spec.actions.continuous_size else None

    @property
    def head_size(self) -> int:
        """H, the width of the heads: means, log σ if it depends on the state (squashed, gSDE), the branches' logits."""
        actions = self.spec.actions
        own = self.squashed or self.gsde is not None
        return actions.continuous_size * (2 if own else 1) + actions.mask_size

    @property
    def output_size(self) -> int:
        """The width of the action layer: the heads without gSDE's log σ, which follows from the layer's inputs."""
        return self.head_size - (0 if self.gsde is None else self.spec.actions.continuous_size)

    @property
    def mean_limit(self) -> float:
        """The bound on the absolute means of continuous actions; 0 for none."""
        return self.gsde.clip_mean if self.gsde is not None and self.squashed else 0.0

    def log_sigma_shape(self, features: int) -> tuple[int, ...] | None:
        """The shape of the parameter `log_sigma`, given the last hidden layer's width; None if there is none."""
        continuous = self.spec.actions.continuous_size
        if self.gsde is not None:
            return features, continuous if self.gsde.full_std else 1
        return (continuous,) if continuous and not self.squashed else None

    @property
    def asked_columns(self) -> tuple[Column, ...]:
        """The columns named in `extra_columns`."""
        return tuple(EXTRA_COLUMNS[name](self.spec) for name in self.extra_columns)

    @property
    def added_columns(self) -> tuple[Column, ...]:
        """The columns that a decision adds to the spec's: `extra_columns`, and `memories` with memory."""
        return (*self.asked_columns, *([memory_column(self.memory_size)] if self.memory_size else []))


def design_of(spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None = None) -> PolicyDesign:
    """Return the design of a behaviour's policy, from its settings and its trainer's class.

    Raises:
        LoadError: if a custom trainer can't be imported, or needs columns that no policy provides.
    """
    path = ("behaviors", spec.name)
    squashed, columns = squashes(settings, folder, path), asked_columns(settings, folder, path)
    with blaming(*path, "trainer_type"):
        check_extra_columns(columns, f"{dotted(path)}.trainer_type: {settings.trainer_type}")
    return PolicyDesign(spec, settings.network_settings, squashed, folder, extra_columns=columns)


Layout = tuple[tuple[str, tuple[int, ...]], ...]

MASK_PENALTY = np.float32(-1e8)
"""Added to the logits of forbidden choices: their probability is exactly 0, and p·log p is 0, not NaN."""

ACTOR_TENSORS = "headrace.stages.policy.network.actor:actor_tensors"
"""Returns the tensors for designs that are not plain; a string, so that only designs that need torch import it."""

NORMALIZER_MEAN = "normalizer.mean"
NORMALIZER_INVERSE_STD = "normalizer.inverse_std"
NORMALIZER_REST = "normalizer.mean_rest"
"""The rounding error of the mean in float32, for policies with float64 inputs; it follows all other tensors, and
trainers need not provide it."""


def policy_layout(design: PolicyDesign) -> Layout:
    """Return (name, shape) of each tensor in the network's acting part, preceded by any normaliser tensors.

    A plain design has `body.<layer>.weight` and `.bias`, `action.weight` and `.bias` (one layer for all heads, see
    `PolicyDesign.output_size`), and `log_sigma` where continuous actions are not squashed, or have gSDE. Any other
    design has the parameters of an `ActorNetwork`, for which torch is imported.

    Raises:
        StageError: if the spec has no observation, or one that can't be learned from.
        LoadError: if the design names a custom network that can't be loaded.
    """
    vectors = ObservationLayout(design.spec).vector_size
    tensors: list[tuple[str, tuple[int, ...]]] = []
    if design.settings.normalize and vectors:
        tensors += [(NORMALIZER_MEAN, (vectors,)), (NORMALIZER_INVERSE_STD, (vectors,))]
    if design.plain:
        tensors += _perceptron(design, vectors)
    else:
        tensors += load_attribute(ACTOR_TENSORS, None, "policy layout")(design)
    return tuple(tensors)


def _perceptron(design: PolicyDesign, width: int) -> list[tuple[str, tuple[int, ...]]]:
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for layer, hidden in enumerate(design.settings.widths):
        tensors += [(f"body.{layer}.weight", (width, hidden)), (f"body.{layer}.bias", (hidden,))]
        width = hidden
    tensors += [("action.weight", (width, design.output_size)), ("action.bias", (design.output_size,))]
    shape = design.log_sigma_shape(width)
    return tensors if shape is None else [*tensors, ("log_sigma", shape)]


def branch_slices(spec: BehaviorSpec) -> tuple[slice, ...]:
    """Return the columns of each discrete branch in a row of choices (logits, masks)."""
    return consecutive_slices(spec.actions.discrete_branches)


def consecutive_slices(sizes: Iterable[int]) -> tuple[slice, ...]:
    """Return the slices of consecutive parts of these sizes."""
    slices, at = [], 0
    for size in sizes:
        slices.append(slice(at, at + size))
        at += size
    return tuple(slices)


def check_layout(update: PolicyUpdate, expected: Layout) -> None:
    """Refuse a policy that was made for another network, regardless of the order of its tensors.

    Raises:
        StageError: naming the first tensor that differs, with the expected and the received shape.
    """
    got = {name: tuple(shape) for name, shape in update.layout if name != NORMALIZER_REST}
    about = f"{update.behavior_id}: policy version {update.version} does not fit this network"
    mend = "was it trained with other network_settings?"
    for name, shape in expected:
        if name not in got:
            raise StageError(f"{about}: expected tensor {name} {shape}, got none of that name; {mend}")
        if got[name] != shape:
            raise StageError(f"{about}: expected tensor {name} {shape}, got {name} {got[name]}; {mend}")
    unknown = [name for name in got if name not in dict(expected)]
    if unknown:
        names = ", ".join(name for name, _ in expected)
        raise StageError(f"{about}: expected tensors {names}, got {unknown[0]} {got[unknown[0]]} as well; {mend}")
