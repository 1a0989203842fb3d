"""The `Trainer`, which learns from trajectories, with its schedules, randomness and replicas; the stage drives it.

The YAML can name any class with this interface (`trainer_type: "module:Class"`). A trainer knows nothing of queues,
credits, hosts or files; it depends only on its constructor's arguments and the order of `add` calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headrace.config import BehaviorSettings
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import TORCHS_OWN, ProductSettings
from headrace.stages.stage import NoStatistics, Statistics

if TYPE_CHECKING:  # main and actors need no torch
    from torch import Tensor

    from headrace.stages.environments.protocol import GoalRewards

# Replicas of a trainer learn together, from the same input and with the same random numbers, each from a part of every
# minibatch. All hold the same rows and the same weights. They therefore agree without messages, except for sums over
# rows: each computes the sums of its part, and `Replicas.add_up` adds them. `joined_replicas` joins processes.


class ReplicaLostError(StageError):
    """A replica no longer takes part: it has ended, or does not respond."""


@dataclass(frozen=True, slots=True)
class Part:
    """One replica's part of n consecutive rows (or of sequences, or of anything countable)."""

    rows: slice
    weight: float
    """Factor on the replica's sums: 1, or less if several replicas have the same part."""

    @property
    def size(self) -> int:
        """The number of its rows."""
        return int(self.rows.stop - self.rows.start)


class Replicas(ABC):
    """The replicas of one trainer, as one of them sees them.

    Attributes:
        rank: this replica's number, from 0.
        size: the number of replicas.
    """

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> Part:
        """This replica's part of `count` rows; if there are fewer rows than replicas, each has all of them."""
        if count < self.size:
            return Part(slice(0, count), 1.0 / self.size)
        return Part(slice(count * self.rank // self.size, count * (self.rank + 1) // self.size), 1.0)

    @abstractmethod
    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all replicas, which are bit-identical on each.

        Raises:
            ReplicaLostError: if another replica does not take part.
        """

    def of_each(self, numbers: Tensor) -> Tensor:
        """The numbers [size, …] of each replica, given those of this one."""
        if self.size == 1:
            return numbers[None]
        found = numbers.new_zeros(self.size, *numbers.shape)
        found[self.rank] = numbers
        self.add_up(found)
        return found

    def gathered(self, part: Tensor, here: Part, count: int) -> Tensor:
        """All `count` rows, of which this replica has computed its part."""
        if self.size == 1:
            return part
        whole = part.new_zeros(count, *part.shape[1:])
        whole[here.rows] = part * here.weight
        self.add_up(whole)
        return whole


class _SingleTrainer(Replicas):
    def add_up(self, *tensors: Tensor) -> None:
        """Do nothing: the tensors are sums already."""


SINGLE_TRAINER = _SingleTrainer()
"""Stands for the replicas of a trainer without replicas."""


@dataclass(frozen=True)
class TrainerContext:
    """The arguments of a trainer."""

    behavior: str
    """Name of the behaviour."""
    settings: BehaviorSettings
    """The behaviour's block of `behaviors` in the YAML."""
    spec: BehaviorSpec
    """Observations and actions: those of the first behaviour id with this name, with which all others must agree."""
    seed: int = 0
    """Seed of all random draws."""
    device: str = "cpu"
    """The torch device to compute on."""
    autograd: bool = False
    """True if torch's autograd computes gradients even where they could be computed by hand."""
    cuda_graphs: bool = True
    """Whether gradient steps on a GPU are captured as CUDA graphs if possible."""
    products: ProductSettings = TORCHS_OWN
    """How wide hidden layers' matrix products and convolutions are computed."""
    agents: int = 1
    """Number of agents that act at a time, as far as the configuration shows: environments × actors."""
    folder: Path | None = None
    """The YAML's folder, which holds modules named in the settings, and where relative paths start."""
    teacher_squashed: bool = False
    """True if a teacher of the trajectories draws continuous actions as SAC does (tanh)."""
    replay_shards: int = 0
    """The number of replay shards in separate hosts; 0 if the trainer keeps the replay buffer."""
    goal_rewards: GoalRewards | None = None
    """The environment's reward as a function of goals, not opened; None if no environment is known."""
    statistics: Statistics = field(default_factory=NoStatistics)
    """Sink of the trainer's statistics."""
    replicas: Replicas = SINGLE_TRAINER
    """This trainer's place among the replicas that learn with it, each from its part of every minibatch."""

    @contextmanager
    def naming_behavior(self) -> Iterator[None]:
        """Prefix a `StageError` raised within with the behaviour's name."""
        try:
            yield
        except StageError as error:
            raise StageError(f"{self.behavior}: {error}") from error


class Trainer(ABC):
    """Learns one behaviour. The class attributes are static properties: `headrace.config.trainers.TrainerKind`."""

    squashed: bool = False
    """True if the policies draw continuous actions as SAC's do: tanh of a Gaussian with a spread for each state."""
    off_policy: ClassVar[bool] = False
    """True if it can learn from steps of any age: actors then send a few at a time (`pacing`), not a whole buffer."""
    imitates: ClassVar[bool] = False
    """True if another policy made the trajectories: their returns are not those of the learned policy."""
    threads_sleep = False
    """True if the trainer's second thread sleeps while it waits, so that it can share a core with an actor."""
    extra_columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns that policies add to each decision for the trainer, of `headrace.stages.policy.design`."""

    def __init__(self, context: TrainerContext) -> None:
        self.context = context

    @property
    @abstractmethod
    def step(self) -> int:
        """Agent steps added so far (continues over a resume)."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Number of updates so far: the version of `policy()`."""

    @property
    @abstractmethod
    def rows_per_update(self) -> int:
        """Number of rows at which `ready()` holds (on-policy: `buffer_size`); flow control sizes its window by it."""

    @property
    def corrects_age(self) -> bool:
        """True if it learns equally well from steps of policies that are an update old; see `max_policy_lag: auto`."""
        return self.off_policy

    @abstractmethod
    def add(self, batch: TrajectoryBatch) -> None:
        """Add trajectories, copying the kept data; may compute values, normalise, and report statistics.

        Raises:
            NotFiniteError: naming agent, column and step, if an observation, action or reward is NaN or infinite; then
                the batch is not added.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Return True if there is enough to learn from."""

    @abstractmethod
    def learn(self) -> int:
        """Learn from the added trajectories; return the number of rows used up, which return as credits.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; then the weights are those before the update.
        """

    def use_threads(self, threads: int) -> None:
        """Use this many threads for learning from now on."""
        import torch

        torch.set_num_threads(threads)

    @abstractmethod
    def policy(self) -> PolicyUpdate:
        """Return the current policy, to act with; its behaviour id is the behaviour name."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that future updates depend on: plain values and NumPy arrays, nested in dicts and lists."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to another network, spec or set of signals; the message names the tensor.
        """

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set a hyperparameter that has a schedule, with effect from the next update.

        Raises:
            StageError: if this trainer has none of this name.
            ValueError: if the value is out of its bounds.
        """
        raise StageError(f"{type(self).__name__} has no {name} that can change during a run")

    def save_bulk(self, folder: Path) -> None:  # noqa: B027 - most trainers have nothing to write
        """Write the part of a checkpoint that is too large for `state_dict()` (a replay memory) into a folder.

        Called right after `state_dict()`. The folder belongs to the checkpoint, and is complete once the checkpoint is.

        Raises:
            OSError: if the disk refuses the file.
        """

    def load_bulk(self, folder: Path) -> str | None:
        """Read the files of `save_bulk`; called after `load_state_dict`.

        Returns:
            A warning that training continues without a missing or broken file; else None.
        """
        return None

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the number of parameters of each network, for the log; empty if the trainer reports none."""
        return {}

    def warm_state(self) -> dict[str, Any]:
        """Return the state other than the policy that a new run may start from: critics, normaliser. Exported.

        Plain values and NumPy arrays of numbers, nested in dicts.
        """
        return {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`, with a fresh optimizer, at step 0.

        Raises:
            StageError: if the state belongs to another network, spec or set of signals; the message names the tensor.
        """
        raise StageError(f"{type(self).__name__} can't start from another run (init_path, initialize_from)")

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from the acting part of an exported policy, by the names of `policy().layout`.

        Raises:
            StageError: if this trainer can't do that, or a tensor does not fit; the message names it.
        """
        raise StageError(f"{type(self).__name__} can't start from an exported policy (init_path, initialize_from)")


LEARNING_RATE_FLOOR = 1e-10
EPSILON_FLOOR = 0.1
BETA_FLOOR = 1e-5
"""The ends of linear schedules, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number that is constant, or falls linearly to `floor` at `max_steps`: learning rate, clip range and so on.

    Raises:
        StageError: if `kind` is neither `linear` nor `constant`, or `max_steps` is not positive.
    """

    kind: str
    """`linear` or `constant`."""
    start: float
    """Value at step 0."""
    floor: float
    """Value at `max_steps` and beyond, of a linear schedule that starts above it."""
    max_steps: int
    """Agent steps of the whole run."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "constant"):
            raise StageError(f"unknown schedule {self.kind!r}; expected linear or constant")
        if self.max_steps <= 0:
            raise StageError(f"a schedule needs max_steps of at least 1, got {self.max_steps}")

    def at(self, step: int) -> float:
        """Return the value at an agent step of the run."""
        if self.kind == "constant" or self.start <= self.floor:
            # ML-Agents lets a value below the floor rise to it: an entropy bonus of 0 would become positive.
            return self.start
        left = 1.0 - min(step, self.max_steps) / self.max_steps
        return (self.start - self.floor) * left + self.floor


def new_random(seed: int) -> np.random.Generator:
    """A generator whose state is an array of 64-bit words, which checkpoints can hold (unlike NumPy's default's)."""
    return np.random.Generator(np.random.SFC64(seed))


def random_state(random: np.random.Generator) -> dict[str, Any]:
    """The state of a generator made by `new_random`, as plain values and a copied array."""
    state = random.bit_generator.state
    return {
        "words": state["state"]["state"].copy(),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def restore_random(random: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Continue from `random_state()`."""
    random.bit_generator.state = {
        "bit_generator": "SFC64",
        "state": {"state": np.array(state["words"], np.uint64)},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Make float32 tensors on the CPU and keep gradients within, whatever has been set; also a decorator."""
    import torch  # here, as code that looks up a trainer's name does not need torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype is torch.float32 and device.type == "cpu" and torch.is_grad_enabled():
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
