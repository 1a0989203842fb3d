"""The design of a policy, which fully describes the policy's structure, and its decision columns and tensors.

Trainer and actors share the same design. A trainer class or its settings can request additional decision columns
through `extra_columns` (docs/extending.md); `EXTRA_COLUMNS` lists the available ones, and `sampling.ActionSampler`
fills them in. The layout gives the names and shapes of the tensors, in the order of `PolicyUpdate.weights`; a policy
with a different layout is rejected. Plain designs store matrices as [in, out], so a layer computes `inputs @ weight +
bias`; all other designs store tensors as their torch modules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, NetworkSettings
from headrace.config.errors import dotted
from headrace.config.network_settings import StateNoiseSettings
from headrace.queues.columns import Column, memory_column
from headrace.queues.messages import Floats, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.loading import load_attribute
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer_lookup import asked_columns, exploration_of, squashes

Numbers = TypeVar("Numbers")
"""A NumPy array or a torch tensor."""

ACTION_HEADS = "action_heads"


class ActionDistributions(NamedTuple, Generic[Numbers]):
    """The distributions that actions were drawn from: views of the rows in the `action_heads` column.

    For squashed continuous actions these are the Gaussians before the tanh. The KL divergence between two of these
    Gaussians equals that between the squashed distributions.
    """

    means: Numbers
    """[.., C] means of the continuous actions."""
    log_sigmas: Numbers
    """[.., C] log σ of the continuous actions.

    For squashed actions, the values are clamped to `sampling.LOG_SIGMA_LIMITS`.
    """
    logits: tuple[Numbers, ...]
    """[.., choices] for each branch, the logits before forbidden choices are masked; see `action_masks`."""


# It does not draw, so that log-probabilities are right for any exploration (docs/decisions/057).
class Exploration(Protocol):
    """How actors draw actions while a trainer learns: from distributions that it derives from those of the network."""

    def explored(
        self,
        heads: ActionDistributions[Floats],
        allowed: tuple[NDArray[np.bool_], ...],
        random: np.random.Generator,
        step: int,
    ) -> ActionDistributions[Floats]:
        """Return the distributions [d, …] that d agents' actions are drawn from; `log_probs` are those of these.

        Args:
            heads: the network's distributions; the arrays must not be modified.
            allowed: for each branch, [d, choices] true = the agent may choose this. Forbidden choices are never drawn.
            random: the only source of randomness; the actions are drawn from it afterwards.
            step: the trainer's step when it made the policy, so that a schedule has the same clock everywhere.
        """
        ...


def action_heads_column(spec: BehaviorSpec) -> Column:
    """Return the column `action_heads` [.., 2·C + choices]: means, log sigmas, logits.

    If all states share their log sigmas, each row repeats them.
    """
    actions = spec.actions
    return Column(ACTION_HEADS, "float32", (2 * actions.continuous_size + actions.mask_size,))


def split_action_heads(spec: BehaviorSpec, heads: Numbers) -> ActionDistributions[Numbers]:
    """Split `action_heads` [.., 2·C + choices], a tensor or an array, into its parts, which are views."""
    whole: Any = heads
    c = spec.actions.continuous_size
    logits = tuple(whole[..., 2 * c :][..., branch] for branch in consecutive_slices(spec.actions.discrete_branches))
    return ActionDistributions(whole[..., :c], whole[..., c : 2 * c], logits)


EXTRA_COLUMNS: Mapping[str, Callable[[BehaviorSpec], Column]] = {ACTION_HEADS: action_heads_column}
"""Maps each column's name to a function that returns that column for a behaviour."""


def check_extra_columns(names: Iterable[str], asker: str) -> None:
    """Check that policies can provide the columns with these names.

    Args:
        names: the columns that the trainer needs.
        asker: the trainer's name, for the error message.

    Raises:
        LoadError: if no policy provides one of the columns; the message names it and lists the available columns.
    """
    unknown = [name for name in names if name not in EXTRA_COLUMNS]
    if unknown:
        raise LoadError(
            f"{asker} requests the columns {', '.join(unknown)}, which no policy provides; the trainer must compute a "
            f"baseline itself, when it first learns from a row; extra_columns can name {', '.join(EXTRA_COLUMNS)}; "
            "actions, log_probs and (if choices can be masked) action_masks are always present"
        )


def require_columns(batch: TrajectoryBatch, columns: Iterable[Column]) -> None:
    """Check that a batch has these columns.

    Raises:
        StageError: if a column is missing or has the wrong dtype or shape; the message names the first of these
            columns.
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
"""A weight matrix needs at least this many rows and columns for the matmul provider and precision to matter."""


@dataclass(frozen=True)
class ProductSettings:
    """How a learner computes its networks' matmuls; see `stages/policy/network/products`."""

    provider: str = "torch"
    """Library for float32 matmuls on the CPU: a key of `products.PROVIDERS`, or `auto` for the fastest one."""
    rows: int = 256
    """Minibatch size used to measure which provider is fastest."""
    rounded_from: int = 0
    """Minimum rows and columns of a weight for which matmul inputs are rounded to bfloat16; 0 to round none."""
    images_rounded: bool = False
    """Whether convolutions and the layer after them are computed in bfloat16."""
    onednn: bool = True
    """Whether oneDNN rounds matmul inputs on CPUs with AMX; if False, Headrace rounds them, as on other CPUs."""

    @property
    def plain(self) -> bool:
        """True if torch's default library computes everything in float32."""
        return self.provider == "torch" and not self.rounded_from and not self.images_rounded


TORCHS_OWN = ProductSettings()
"""Settings for float32 matmuls with torch's default library."""
BF16 = ProductSettings(rounded_from=FROM_UNITS, images_rounded=True)
"""Settings for bfloat16 wherever it is faster."""


@dataclass(frozen=True)
class PolicyDesign:
    """A policy's spec, its network settings, and how its continuous actions are distributed."""

    spec: BehaviorSpec
    settings: NetworkSettings
    squashed: bool = False
    """True if continuous actions are the tanh of a Gaussian with a state-dependent log σ (SAC, and gSDE's
    `squash_output`). False if they come from a plain Gaussian with one log σ for all states, and are clipped on
    output (PPO)."""
    folder: Path | None = None
    """Folder of the YAML file, from which a custom network's module may be imported; None without a YAML file."""
    key: str = "network_settings"
    """Path of the network settings in the behaviour's YAML block, for messages.

    Each reward signal has a different path.
    """
    extra_columns: tuple[str, ...] = ()
    """Names of the columns that the trainer needs: keys of `EXTRA_COLUMNS`."""
    products: ProductSettings = TORCHS_OWN
    """The learner's matmul settings (`torch_settings.precision`, `.products`); acting and exported policies use the
    defaults."""
    random_steps: int = 0
    """Number of trainer steps during which an acting policy draws uniform actions, except in deterministic play."""
    exploration: Exploration | None = None
    """How an acting policy explores, except in deterministic play; None to draw from the network's distributions."""
    greedy: bool = False
    """Whether a policy always takes the mean and the most likely choice, because only `exploration` gives its trainer's
    outputs a meaning as distributions."""
    explores: bool = False
    """Whether an acting policy keeps each agent's gSDE noise in that agent's memory; if False, it draws new noise for
    each decision."""

    @property
    def plain(self) -> bool:
        """True if the policy is a feed-forward perceptron over vectors, which actors run in NumPy (`numpy_policy`)."""
        settings = self.settings
        return settings.memory is None and settings.network is None and ObservationLayout(self.spec).plain

    @property
    def perceptron(self) -> bool:
        """True if a plain perceptron's outputs are its head outputs, which allows gradients without autograd."""
        return self.plain and self.gsde is None

    @property
    def of_critic(self) -> PolicyDesign:
        """The design for a critic with its own body."""
        settings = self.settings.of_critic
        return self if settings is self.settings else replace(self, settings=settings)

    @property
    def hypernetwork(self) -> bool:
        """True if goals generate the weights of the last hidden layer, provided the spec has goals."""
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
        """The settings for state-dependent noise; None if the noise is off or there are no continuous actions."""
        return self.settings.gsde if self.spec.actions.continuous_size else None

    @property
    def head_size(self) -> int:
        """H, the width of the head outputs: means, log σ if state-dependent (squashed, gSDE), each branch's logits."""
        actions = self.spec.actions
        with_sigma = self.squashed or self.gsde is not None
        return actions.continuous_size * (2 if with_sigma else 1) + actions.mask_size

    @property
    def output_size(self) -> int:
        """The width of the action layer: all heads except gSDE's log σ, which is computed from the layer's inputs."""
        return self.head_size - (0 if self.gsde is None else self.spec.actions.continuous_size)

    @property
    def mean_limit(self) -> float:
        """The largest absolute mean that continuous actions may have; 0 for no limit."""
        return self.gsde.clip_mean if self.gsde is not None and self.squashed else 0.0

    def log_sigma_shape(self, features: int) -> tuple[int, ...] | None:
        """Return the shape of the parameter `log_sigma`, given the last hidden layer's width; None if there is none."""
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
        """Columns that a decision adds to the spec's columns: `extra_columns`, and `memories` if there is a memory."""
        return (*self.asked_columns, *([memory_column(self.memory_size)] if self.memory_size else []))


def design_of(spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None = None) -> PolicyDesign:
    """Return the design of a behaviour's policy, based on the behaviour's settings and its trainer's class.

    Raises:
        LoadError: if a custom trainer can't be imported, or needs columns that no policy provides.
    """
    path = ("behaviors", spec.name)
    squashed, columns = squashes(settings, folder, path), asked_columns(settings, folder, path)
    with blaming(*path, "trainer_type"):
        check_extra_columns(columns, f"{dotted(path)}.trainer_type: {settings.trainer_type}")
    greedy = exploration_of(settings, folder, path) is not None
    return PolicyDesign(spec, settings.network_settings, squashed, folder, extra_columns=columns, greedy=greedy)


Layout = tuple[tuple[str, tuple[int, ...]], ...]

MASK_PENALTY = np.float32(-1e8)
"""Added to the logits of forbidden choices. Their probability is then exactly 0, and p·log p is 0 rather than NaN."""

ACTOR_TENSORS = "headrace.stages.policy.network.body:actor_tensors"
"""Import path of the function that returns the tensors of designs that are not plain, so only those designs import
torch."""

NORMALIZER_MEAN = "normalizer.mean"
NORMALIZER_INVERSE_STD = "normalizer.inverse_std"
NORMALIZER_REST = "normalizer.mean_rest"
"""Name of the tensor with the mean's float32 rounding error, for policies with float64 inputs. The tensor comes after
all others, and trainers may omit it."""


def policy_layout(design: PolicyDesign) -> Layout:
    """Return (name, shape) of each tensor in the network's acting part; a normaliser's tensors come first.

    A plain design has `body.<layer>.weight` and `.bias`, `action.weight` and `.bias` (one layer for all heads, see
    `PolicyDesign.output_size`), and `log_sigma` if continuous actions are not squashed, or if they use gSDE. Any other
    design has the parameters of an `ActorNetwork`; only then is torch imported.

    Raises:
        StageError: if the spec has no observation, or one that can't be learned from.
        LoadError: if the design names a custom network that can't be loaded.
    """
    width = ObservationLayout(design.spec).vector_size
    tensors: list[tuple[str, tuple[int, ...]]] = []
    if design.settings.normalize and width:
        tensors += [(NORMALIZER_MEAN, (width,)), (NORMALIZER_INVERSE_STD, (width,))]
    if not design.plain:
        return *tensors, *load_attribute(ACTOR_TENSORS, None, "policy layout")(design)
    for layer, hidden in enumerate(design.settings.widths):
        tensors += [(f"body.{layer}.weight", (width, hidden)), (f"body.{layer}.bias", (hidden,))]
        width = hidden
    tensors += [("action.weight", (width, design.output_size)), ("action.bias", (design.output_size,))]
    shape = design.log_sigma_shape(width)
    return tuple(tensors) if shape is None else (*tensors, ("log_sigma", shape))


def consecutive_slices(sizes: Iterable[int]) -> tuple[slice, ...]:
    """Return the slices of adjacent parts with these sizes, such as each branch's columns in logits or masks."""
    slices, at = [], 0
    for size in sizes:
        slices.append(slice(at, at + size))
        at += size
    return tuple(slices)


def check_tensors(what: str, got: Iterable[tuple[str, tuple[int, ...]]], expected: Layout) -> None:
    """Raise an error if tensors, each (name, shape), are not those of a network; their order does not matter.

    Args:
        what: start of the message, which names what holds the tensors.
        got: the tensors; `NORMALIZER_REST` is ignored.
        expected: the network's tensors.

    Raises:
        StageError: if a tensor is missing or unknown, or has the wrong shape; the message names the first one.
    """
    theirs, ours = {name: tuple(shape) for name, shape in got if name != NORMALIZER_REST}, dict(expected)
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            raise StageError(
                f"{what}: expected tensor {name} {ours.get(name, 'to be absent')}, got "
                f"{theirs.get(name, 'none of that name')}; were other network_settings or another environment used?"
            )
