"""What a policy is built from: the same on the learner's side and on the actors'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config import BehaviorSettings, NetworkSettings
from queues.specs import BehaviorSpec
from stages.policy.observations import ObservationLayout
from stages.trainers import trainer_kind


@dataclass(frozen=True)
class PolicyDesign:
    """Spec, network settings, and how continuous actions are distributed."""

    spec: BehaviorSpec
    settings: NetworkSettings
    squashed: bool = False
    """Continuous actions are tanh of a Gaussian whose log σ depends on the state (SAC), instead of a plain Gaussian
    with one log σ for all states that is clipped on its way out (PPO)."""
    folder: Path | None = None
    """The YAML's folder, whose modules may name a network of the user's own."""
    key: str = "network_settings"
    """Where the settings stand in the behaviour's block of the YAML, for messages: reward signals have their own."""

    @property
    def plain(self) -> bool:
        """Whether it is a feed-forward perceptron over vectors: actors then run it in NumPy (`numpy_policy`)."""
        settings = self.settings
        return settings.memory is None and settings.network is None and ObservationLayout(self.spec).plain

    @property
    def hypernetwork(self) -> bool:
        """True if goals, where there are any, make the weights of the last hidden layer."""
        return self.settings.goal_conditioning_type == "hyper"

    @property
    def memory_size(self) -> int:
        """m: numbers that a policy remembers per agent, 0 without memory."""
        return 0 if self.settings.memory is None else self.settings.memory.memory_size

    @property
    def previous_action_size(self) -> int:
        """P: width of the previous action as a network with memory takes it in; 0 without memory."""
        actions = self.spec.actions
        return actions.continuous_size + actions.mask_size if self.memory_size else 0

    @property
    def head_size(self) -> int:
        """Outputs of the action layer: means, log σ if squashed, then the logits of each branch."""
        actions = self.spec.actions
        return actions.continuous_size * (2 if self.squashed else 1) + actions.mask_size


def design_of(spec: BehaviorSpec, settings: BehaviorSettings, folder: Path | None = None) -> PolicyDesign:
    """The design of a behaviour's policy, as its settings and its trainer's class say.

    Raises:
        LoadError: if the trainer is one of the user's own and can't be imported.
    """
    kind = trainer_kind(settings.trainer_type, folder, ("behaviors", spec.name))
    return PolicyDesign(spec, settings.network_settings, kind.squashed, folder)
