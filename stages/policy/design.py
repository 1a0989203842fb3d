"""The design of a policy: all that it is built from, the same on the learner's side and on the actors'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config import BehaviorSettings, NetworkSettings
from headrace.config.errors import dotted
from headrace.queues.columns import Column, memory_column
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import blaming
from headrace.stages.policy.extra_columns import EXTRA_COLUMNS, check_extra_columns
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer_lookup import asked_columns, trainer_kind


@dataclass(frozen=True)
class PolicyDesign:
    """Spec, network settings, and distribution of continuous actions."""

    spec: BehaviorSpec
    settings: NetworkSettings
    squashed: bool = False
    """Continuous actions are tanh of a Gaussian whose log σ depends on the state (SAC), instead of a plain Gaussian
    with one log σ for all states that is clipped on its way out (PPO)."""
    folder: Path | None = None
    """The YAML's folder, in which a module with a network of the user's own may lie."""
    key: str = "network_settings"
    """Path of the settings in the behaviour's block of the YAML, for messages: reward signals have their own."""
    extra_columns: tuple[str, ...] = ()
    """Names of the columns that the trainer asks for: keys of `EXTRA_COLUMNS`."""
    bf16: bool = False
    """The learner computes wide hidden products and convolutions in bfloat16 (`torch_settings.precision`); acting and
    exported policies never do."""
    random_steps: int = 0
    """Trainer steps below which an acting policy draws its actions uniformly, unless asked for the most likely ones."""

    @property
    def plain(self) -> bool:
        """True if it is a feed-forward perceptron over vectors, which actors run in NumPy (`numpy_policy`)."""
        settings = self.settings
        return settings.memory is None and settings.network is None and ObservationLayout(self.spec).plain

    @property
    def hypernetwork(self) -> bool:
        """True if goals, where there are any, make the weights of the last hidden layer."""
        return self.settings.goal_conditioning_type == "hyper"

    @property
    def memory_size(self) -> int:
        """m: numbers in an agent's memory, 0 without memory."""
        return 0 if self.settings.memory is None else self.settings.memory.memory_size

    @property
    def previous_action_size(self) -> int:
        """P: width of the previous action as an input of a network with memory; 0 without memory."""
        actions = self.spec.actions
        return actions.continuous_size + actions.mask_size if self.memory_size else 0

    @property
    def head_size(self) -> int:
        """Outputs of the action layer: means, log σ if squashed, then the logits of each branch."""
        actions = self.spec.actions
        return actions.continuous_size * (2 if self.squashed else 1) + actions.mask_size

    @property
    def asked_columns(self) -> tuple[Column, ...]:
        """The columns of `extra_columns`."""
        return tuple(EXTRA_COLUMNS[name](self.spec) for name in self.extra_columns)

    @property
    def added_columns(self) -> tuple[Column, ...]:
        """The columns of a decision beside those that follow from the spec: asked ones, and `memories` with memory."""
        return (*self.asked_columns, *([memory_column(self.memory_size)] if self.memory_size else []))


def design_of(spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None = None) -> PolicyDesign:
    """Return the design of a behaviour's policy, by its settings and its trainer's class.

    Raises:
        LoadError: if the trainer is one of the user's own and can't be imported, or asks for columns that no policy
            gives.
    """
    path = ("behaviors", spec.name)
    kind, asked = trainer_kind(settings.trainer_type, folder, path), asked_columns(settings, folder, path)
    with blaming(*path, "trainer_type"):
        check_extra_columns(asked, f"{dotted(path)}.trainer_type: {settings.trainer_type}")
    return PolicyDesign(spec, settings.network_settings, kind.squashed, folder, extra_columns=asked)
