"""The `Trainer`, which learns from trajectories; the trainer stage drives it.

Any class with this interface can be named in the YAML (`trainer_type: "module:Class"`). A trainer knows nothing of
queues, credits, hosts or files; it depends on nothing but its constructor's arguments and the order of `add` calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace.config import BehaviorSettings
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.stage import NoStatistics, Statistics
from headrace.stages.trainer.replicas import SINGLE_TRAINER, Replicas


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
    """True if gradients are to be found by torch's autograd also where they could be found without."""
    cuda_graphs: bool = True
    """Whether gradient steps on a GPU are captured as CUDA graphs where that is possible."""
    bf16: bool = False
    """Whether wide hidden products and convolutions are computed in bfloat16."""
    agents: int = 1
    """Number of agents that act at a time, as far as the configuration shows: environments × actors."""
    folder: Path | None = None
    """Folder of the YAML: modules named in the settings lie in it, and relative paths start from it."""
    teacher_squashed: bool = False
    """True if a teacher of the trajectories draws continuous actions as SAC does (tanh)."""
    replay_shards: int = 0
    """Shards of the replay buffer in hosts of their own; 0: the trainer keeps it."""
    statistics: Statistics = field(default_factory=NoStatistics)
    """Sink of the trainer's statistics."""
    replicas: Replicas = SINGLE_TRAINER
    """This trainer's place among those that learn with it, each from its part of every minibatch."""

    @contextmanager
    def naming_behavior(self) -> Iterator[None]:
        """Put the behaviour's name before the message of a `StageError` that is raised within."""
        try:
            yield
        except StageError as error:
            raise StageError(f"{self.behavior}: {error}") from error


class Trainer(ABC):
    """Learns one behaviour. The class attributes are static properties: `headrace.config.trainers.TrainerKind`."""

    squashed: ClassVar[bool] = False
    """True if the policies draw continuous actions as SAC's do: tanh of a Gaussian with a spread for each state."""
    off_policy: ClassVar[bool] = False
    """True if steps of any age can be learned from: actors then send a few at a time (`pacing`), not a whole buffer."""
    imitates: ClassVar[bool] = False
    """True if the trajectories are of another policy: their returns are not those of the learned policy."""
    extra_columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns that policies add for it to each decision, of `headrace.stages.policy.extra_columns`."""

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
        """True if it learns as well from steps of policies that are an update old: see `max_policy_lag: auto`."""
        return self.off_policy

    @abstractmethod
    def add(self, batch: TrajectoryBatch) -> None:
        """Add trajectories, copying what is kept; may compute values, normalise, report statistics.

        Raises:
            NotFiniteError: naming agent, column and step, if an observation, action or reward is NaN or infinite; the
                batch is then not added.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Return True if there is enough to learn from."""

    @abstractmethod
    def learn(self) -> int:
        """Learn from the added trajectories; returns the number of rows used up, which return as credits.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; the weights are then those before the update.
        """

    @abstractmethod
    def policy(self) -> PolicyUpdate:
        """Return the current policy, to act with; its behaviour id is the behaviour name."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that future updates depend on: plain values and NumPy arrays, nested in dicts and lists."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to another network, spec or set of signals; the message names the tensor.
        """

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Use another value of a hyperparameter that has a schedule, from the next update on.

        Raises:
            StageError: if this trainer has none of this name.
            ValueError: if the value is out of its bounds.
        """
        raise StageError(f"{type(self).__name__} has no {name} that may change in a run")

    def save_bulk(self, folder: Path) -> None:  # noqa: B027 - most trainers have nothing to write
        """Write the part of a checkpoint that is too large for `state_dict()` (a replay memory) into a folder.

        Called right after `state_dict()`. The folder is the checkpoint's own, and whole once the checkpoint is.

        Raises:
            OSError: if the disk refuses.
        """

    def load_bulk(self, folder: Path) -> str | None:
        """Read the files of `save_bulk`; called after `load_state_dict`.

        Returns:
            A warning that training continues without a missing or broken file; else None.
        """
        return None

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the number of parameters of each of its networks, for the log; none if it does not say."""
        return {}

    def warm_state(self) -> dict[str, Any]:
        """Return the state that a new run may start from beside the policy: critics, normaliser. Exported.

        Plain values and NumPy arrays of numbers, nested in dicts.
        """
        return {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from `warm_state()` of another run, with a fresh optimizer, at step 0.

        Raises:
            StageError: if it belongs to another network, spec or set of signals; the message names the tensor.
        """
        raise StageError(f"{type(self).__name__} can't start from another run (init_path, initialize_from)")

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from the acting part of an exported policy, by the names of `policy().layout`.

        Raises:
            StageError: if this trainer can't, or a tensor does not fit; the message names it.
        """
        raise StageError(f"{type(self).__name__} can't start from an exported policy (init_path, initialize_from)")
