"""The interface `Trainer`, for classes that learn from trajectories; its schedules, pace, randomness and replicas.

The trainer stage drives the trainer. The YAML can name any class with this interface (`trainer_type: "module:Class"`).
A trainer does not use queues, credits, hosts or files; it depends only on its constructor's arguments and the order of
`add` calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headrace.config import BehaviorSettings
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import TORCHS_OWN, Exploration, PolicyDesign, ProductSettings
from headrace.stages.stage import NoStatistics, Statistics

if TYPE_CHECKING:  # main and actors need no torch
    from torch import Tensor

    from headrace.stages.environments.protocol import GoalRewards

# A trainer's replicas learn together, from the same input and with the same random numbers, each from a part of every
# minibatch. All of them hold the same rows and the same weights. They therefore agree without messages, except for sums
# over rows: each replica computes the sums for its part, and `Replicas.add_up` adds them up. `joined_replicas` connects
# replicas in several processes.


class ReplicaLostError(StageError):
    """Raised if a replica no longer takes part, because it has ended or does not respond."""


@dataclass(frozen=True, slots=True)
class ReplicaSlice:
    """One replica's part of n consecutive rows, sequences or other items."""

    rows: slice
    weight: float
    """Factor on the replica's sums: 1, or less if several replicas have the same rows."""

    @property
    def size(self) -> int:
        """The number of rows in this part."""
        return int(self.rows.stop - self.rows.start)


class Replicas:
    """The replicas of one trainer, from the point of view of one of them; by default, a trainer without replicas.

    Attributes:
        rank: this replica's number, counted from 0.
        size: the number of replicas.
    """

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> ReplicaSlice:
        """Return this replica's part of `count` rows; if there are fewer rows than replicas, each gets all rows."""
        if count < self.size:
            return ReplicaSlice(slice(0, count), 1.0 / self.size)
        return ReplicaSlice(slice(count * self.rank // self.size, count * (self.rank + 1) // self.size), 1.0)

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all replicas; the sums are bit-identical on all replicas.

        Raises:
            ReplicaLostError: if another replica does not take part.
        """

    def of_each(self, numbers: Tensor) -> Tensor:
        """Return each replica's numbers [size, …], given those of this replica."""
        return self.gathered(numbers[None], ReplicaSlice(slice(self.rank, self.rank + 1), 1.0), self.size)

    def gathered(self, part: Tensor, here: ReplicaSlice, count: int) -> Tensor:
        """Return all `count` rows, given the part that this replica has computed."""
        if self.size == 1:
            return part
        whole = part.new_zeros(count, *part.shape[1:])
        whole[here.rows] = part * here.weight
        self.add_up(whole)
        return whole


SINGLE_TRAINER = Replicas()
"""The `Replicas` object for a trainer that has no other replicas."""


@dataclass(frozen=True)
class TrainerContext:
    """The arguments that a trainer is constructed with."""

    behavior: str
    """Name of the behaviour."""
    settings: BehaviorSettings
    """The behaviour's block under `behaviors` in the YAML."""
    spec: BehaviorSpec
    """Observations and actions of the first behaviour id with this name.

    All other ids with this name must have the same.
    """
    seed: int = 0
    """Seed for all random draws."""
    device: str = "cpu"
    """The torch device to compute on."""
    accelerated: bool = True
    """Whether updates may be computed faster than the trainers are written."""
    accelerate: Callable[[Any, TrainerContext, PolicyDesign], Any] = lambda update, context, design: update
    """Returns the update that a built-in trainer uses, given the one that it has made; `make_trainer` sets
    `fast.accelerate`. By default, it is that one, which computes its gradients by autograd."""
    products: ProductSettings = TORCHS_OWN
    """How matrix products and convolutions of wide hidden layers are computed."""
    agents: int = 1
    """Number of agents that act concurrently, as far as the configuration determines it: environments × actors."""
    folder: Path | None = None
    """The YAML's folder, which contains modules named in the settings and is the base for relative paths."""
    teacher_squashed: bool = False
    """True if the trajectories come from a teacher that draws continuous actions as SAC does (with tanh)."""
    replay_shards: int = 0
    """Number of replay shards in separate hosts; 0 if the trainer itself holds the replay buffer."""
    goal_rewards: GoalRewards | None = None
    """The environment's reward as a function of goals, not opened yet; None if no environment is known."""
    statistics: Statistics = field(default_factory=NoStatistics)
    """Receives the trainer's statistics."""
    replicas: Replicas = SINGLE_TRAINER
    """The replicas that learn together with this trainer, each from its part of every minibatch."""

    @contextmanager
    def naming_behavior(self, part: str = "") -> Iterator[None]:
        """Prefix a `StageError` raised in the `with` block with the behaviour's name, and a part's if given."""
        try:
            yield
        except StageError as error:
            raise StageError(f"{self.behavior}: {part and f'{part}: '}{error}") from error


class Trainer(ABC):
    """Learns one behaviour. Class attributes are its static properties; see `headrace.config.trainers.TrainerKind`."""

    squashed: bool = False
    """True if policies draw continuous actions like SAC's: tanh of a Gaussian with a state-dependent deviation."""
    off_policy: ClassVar[bool] = False
    """True if the trainer can learn from steps of any age; actors then send a few steps at a time, not a full
    buffer."""
    imitates: ClassVar[bool] = False
    """True if a different policy made the trajectories, so their returns are not those of the learned policy."""
    threads_sleep = False
    """True if the trainer's second thread sleeps while it waits, so it can share a core with an actor."""
    extra_columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns that policies add to each decision for the trainer; see `headrace.stages.policy.design`."""

    def __init__(self, context: TrainerContext) -> None:
        self.context = context

    @classmethod
    def exploration(cls, settings: BehaviorSettings) -> Exploration | None:
        """Return how actors draw actions while this trainer learns; None to draw from the network's distributions.

        Actors call this method with the behaviour's settings, in their own processes, without an instance. If it
        returns an object, deterministic play, evaluation and exported policies always take the best actions.
        """
        return None

    @property
    @abstractmethod
    def step(self) -> int:
        """Number of agent steps added so far, including those before a resume."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Number of calls to `learn` so far, which is the version of `policy()`."""

    @property
    def policy_updates(self) -> int:
        """Number of updates so far. This is `version`, unless some calls to `learn` change no weights."""
        return self.version

    @property
    def rows_per_update(self) -> int:
        """Number of rows from which `ready()` is true; it determines flow control's window.

        By default, it is `buffer_size` or, for an off-policy trainer, the number of steps that actors send at a time.
        """
        return rows_per_update(self.context.settings, self.context.agents, self.off_policy)

    @property
    def corrects_age(self) -> bool:
        """True if learning works equally well with steps from policies one update old; see `max_policy_lag: auto`."""
        return self.off_policy

    @abstractmethod
    def add(self, batch: TrajectoryBatch) -> None:
        """Add trajectories, copying all data that is kept. May compute values, normalise, and report statistics.

        Raises:
            NotFiniteError: if an observation, action or reward is NaN or infinite; the message gives agent, column and
                step, and the batch is not added.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Return True if there are enough rows for an update."""

    @abstractmethod
    def learn(self) -> int:
        """Learn from the added trajectories; return the number of rows used up, so their credits can be returned.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; the weights from before the update are kept.
        """

    def use_threads(self, threads: int) -> None:
        """Use this number of threads for learning from now on."""
        import torch

        torch.set_num_threads(threads)

    @abstractmethod
    def policy(self) -> PolicyUpdate:
        """Return the current policy, for acting; its behaviour id is the behaviour name."""

    def exported_policy(self) -> PolicyUpdate:
        """Return the policy to write to files. By default, this is the policy used for acting."""
        return self.policy()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all state that future updates depend on.

        It consists of plain values and NumPy arrays of numbers, nested in dicts, lists and tuples.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state belongs to a different network, spec or set of signals; the message names the
                tensor.
        """

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set a hyperparameter that has a schedule, with effect from the next update.

        Raises:
            StageError: if this trainer has no hyperparameter of this name that can change.
            ValueError: if the value is out of bounds.
        """
        raise StageError(f"{type(self).__name__} has no {name} that can change during a run")

    def save_bulk(self, folder: Path) -> None:  # noqa: B027 - most trainers have nothing to write
        """Write the state that is too large for `state_dict()`, such as a replay memory, into a checkpoint's folder.

        This method is called right after `state_dict()`. The files become valid together with the checkpoint.

        Raises:
            OSError: if a file can't be written.
        """

    def load_bulk(self, folder: Path) -> str | None:
        """Read the files that `save_bulk` wrote. This method is called after `load_state_dict`.

        Returns:
            A warning if a file is missing or broken, in which case training continues without it; otherwise None.
        """
        return None

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the number of parameters of each network, for the log; empty if the trainer reports none."""
        return {}

    def warm_state(self) -> dict[str, Any]:
        """Return the state, other than the policy, that a new run can start from, such as critics and normaliser.

        The state is exported with the policy. It consists of plain values and NumPy arrays of numbers, nested in dicts,
        lists and tuples.
        """
        return {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`, at step 0 and with a new optimizer.

        Raises:
            StageError: if the state belongs to a different network, spec or set of signals; the message names the
                tensor.
        """
        raise StageError(f"{type(self).__name__} can't start from another run (init_path, initialize_from)")

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from the acting part of an exported policy, whose tensors are named as in `policy().layout`.

        Raises:
            StageError: if this trainer can't start from a policy, or a tensor does not fit; the message names the
                tensor.
        """
        raise StageError(f"{type(self).__name__} can't start from an exported policy (init_path, initialize_from)")


LEARNING_RATE_FLOOR = 1e-10
EPSILON_FLOOR = 0.1
BETA_FLOOR = 1e-5
"""The floors of linear schedules for learning rate, clip range and entropy bonus, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A hyperparameter, such as the learning rate, that is constant or falls linearly to `floor` at `max_steps`.

    Raises:
        StageError: if `kind` is neither `linear` nor `constant`, or `max_steps` is not positive.
    """

    kind: str
    """The kind of schedule: `linear` or `constant`."""
    start: float
    """Value at step 0."""
    floor: float
    """Value of a linear schedule at `max_steps` and beyond; has no effect unless `start` is above it."""
    max_steps: int
    """Number of agent steps in the entire run."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "constant"):
            raise StageError(f"unknown schedule {self.kind!r}; expected linear or constant")
        if self.max_steps <= 0:
            raise StageError(f"a schedule needs max_steps of at least 1, got {self.max_steps}")

    def at(self, step: int) -> float:
        """Return the value at an agent step of the run."""
        if self.kind == "constant" or self.start <= self.floor:
            # ML-Agents lets a value below the floor rise to the floor: an entropy bonus of 0 would become positive.
            return self.start
        left = 1.0 - min(step, self.max_steps) / self.max_steps
        return (self.start - self.floor) * left + self.floor


# How many steps actors send to a trainer at a time, computed on both sides from the settings and the trainer type.

USUAL_BUFFER_SIZE = 1024
"""`buffer_size` assumed for a custom trainer that has none; flow control also works if the trainer uses a different
number."""

_OFF_POLICY_ROWS = 8
"""Number of steps between two policies of an off-policy trainer.

It is small enough that policies stay up to date, and large enough that messages do not cost more than learning.
"""


# Credits also pace off-policy trainers: otherwise, actors would run ahead by the capacity of a queue
# (docs/decisions/023).
def rows_per_update(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Return the number of rows after which the trainer learns and publishes a policy.

    Args:
        settings: the behaviour's settings.
        agents: the number of agents that act concurrently.
        off_policy: whether the trainer can learn from steps of any age.
    """
    usual = agents * longest_piece(settings, agents, off_policy) if off_policy else USUAL_BUFFER_SIZE
    return _own_rows(settings, off_policy) or usual


def longest_piece(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Return the number of steps after which an agent's trajectory is cut.

    The number is `time_horizon` or, for IMPALA, the length of an unroll. For an off-policy trainer, which need not wait
    for long trajectories, it is smaller. If the policy has a memory, it is the length of a sequence.
    """
    if not off_policy:
        hyperparameters = settings.hyperparameters
        length = None if isinstance(hyperparameters, Mapping) else hyperparameters.longest_piece
        return settings.time_horizon if length is None else length
    memory = settings.network_settings.memory
    rows = _own_rows(settings, off_policy) or _OFF_POLICY_ROWS
    return min(settings.time_horizon, max(1, -(-rows // agents)) if memory is None else memory.sequence_length)


def _own_rows(settings: BehaviorSettings, off_policy: bool) -> int | None:
    """Return the number of rows after which the trainer learns; None if its settings do not define it."""
    hyperparameters = settings.hyperparameters
    if not isinstance(hyperparameters, Mapping):
        return hyperparameters.rows_per_update
    size = None if off_policy else hyperparameters.get("buffer_size")
    return size if isinstance(size, int) and size > 0 else None


def new_random(seed: int) -> np.random.Generator:
    """Return a generator whose state is a short array of 64-bit words."""
    return np.random.Generator(np.random.SFC64(seed))


def random_state(random: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator made by `new_random`, as plain values and a copied array."""
    state = random.bit_generator.state
    return {
        "words": state["state"]["state"].copy(),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def restore_random(random: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Restore the state returned by `random_state()`."""
    random.bit_generator.state = {
        "bit_generator": "SFC64",
        "state": {"state": np.array(state["words"], np.uint64)},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


@contextmanager
def defaults_of(trainer_type: type[Trainer]) -> Iterator[None]:
    """Call a trainer of this type in the `with` block, because other code may have changed torch's state.

    Gradients are enabled for every trainer. Built-in trainers and their subclasses also get torch's default dtype and
    device, float32 and the CPU; other trainers may have set these themselves.
    """
    import torch  # imported here, because code that looks up a trainer's name does not need torch

    bases = (base for base in trainer_type.__mro__ if not issubclass(Trainer, base))
    built_in = any(base.__module__.startswith("headrace.") for base in bases)
    with ExitStack() as changed:
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            changed.enter_context(torch.inference_mode(False))
            changed.enter_context(torch.enable_grad())
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
        if built_in and not (dtype is torch.float32 and device.type == "cpu"):
            torch.set_default_dtype(torch.float32)
            changed.callback(torch.set_default_dtype, dtype)
            changed.enter_context(torch.device("cpu"))
        yield
