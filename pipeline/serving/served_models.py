"""Served models: read from their files, tested once, and reloaded when a newer file appears."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from headrace.config.paths import user_path
from headrace.pipeline.common.errors import CommandError, RunError
from headrace.pipeline.common.output import complain
from headrace.pipeline.policies.model_files import (
    ModelFile,
    check_decides,
    check_spec,
    find_model,
    find_models,
    read_model,
)
from headrace.pipeline.prediction.policy_spaces import PolicySpaces, policy_spaces
from headrace.queues.disks import Disks, answered, in_thread
from headrace.queues.specs import BehaviorSpec
from headrace.stages.action_units import action_units
from headrace.stages.errors import StageError, describe_error
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall
from headrace.startup_context import shown

log = logging.getLogger(__name__)

QUICK_PRODUCTS = 2**20
"""Maximum number of multiplications in a decision made in the event loop; slower decisions would block requests."""

UNANSWERED_S = 60.0
"""Seconds after which the server no longer waits for a file to be read."""

Signature = tuple[str, int, int, int]
"""Identity of a file: path, inode, modification time and size. The identity changes when the file is replaced."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A policy that was read from a file and tested with one decision."""

    path: Path
    signature: Signature
    spec: BehaviorSpec
    terms: PolicySpaces
    policy: ActingPolicy
    version: int
    """Number of the served policy: 1 for the first one, 2 for the next, …"""
    step: int
    """Number of steps for which the policy was trained; 0 if the file does not state it."""
    weights: int
    """Number of the policy's parameters; 0 for an `.onnx` file."""
    deterministic: bool
    """True if the policy's network settings select the mean or the most likely action."""

    @property
    def description(self) -> str:
        """Text that names the policy's file, and the policy's step if known."""
        return shown(self.path) + (f", step {self.step}" if self.step else "")

    def act(self, *arguments: Any) -> Decision:
        """Decide as `ActingPolicy.act` does, but with continuous actions in the environment's units."""
        decision = self.policy.act(*arguments)
        return replace(decision, actions=self.terms.in_units(decision.actions))

    def is_quick(self, agents: int) -> bool:
        """Return True if a decision for this many agents costs no more than a thread switch."""
        return isinstance(self.policy, NumpyPolicy) and agents * self.weights <= QUICK_PRODUCTS


class ServedModel:
    """A named model: the last policy loaded, and where to look for newer ones.

    Args:
        name: the model's name in requests.
        reference: a model reference (`headrace.pipeline.policies.model_files`).
        behavior: the behaviour in that reference.

    Raises:
        RunError: if the model can't be read.
    """

    def __init__(self, name: str, reference: str, behavior: str) -> None:
        self.name = name
        self._reference = reference
        self._behavior = behavior
        self._refused: object = None
        """Signature of the last refused file, or the last error, which serves to log each warning only once."""
        self.newest = _load(*self._find(), version=1)

    def nothing_recalled(self, agents: int) -> Recall | None:
        """Return the memories of agents before their first decision; None for a model without memory."""
        return nothing_recalled(self.newest.policy, self.newest.spec.actions, agents)

    def refresh(self) -> None:
        """Load the newest file, if it is not the one already loaded.

        A file that can't be read or does not fit is ignored, with a warning, until it changes.
        """
        signature: Signature | None = None
        try:
            file, signature = self._find()
            if signature in (self.newest.signature, self._refused):
                return
            loaded = _load(file, signature, self.newest.version + 1)
            check_spec(loaded.spec, self.newest.spec, "clients expect")
            theirs, ours = loaded.policy.memory_size, self.newest.policy.memory_size
            if theirs != ours:
                raise StageError(f"its memory has {theirs} numbers, but the open sessions hold {ours}")
        except (RunError, StageError, OSError) as error:
            complaint = signature or str(error)
            if complaint != self._refused:
                self._refused = complaint
                text = "%s: a newer model can't be served; still serving the previous one: %s"
                log.warning(text, self.name, error, extra={"behavior": self.name, "step": self.newest.step})
            return
        self.newest, self._refused = loaded, None
        log.info(
            "%s: now serving %s", self.name, loaded.description, extra={"behavior": self.name, "step": loaded.step}
        )

    def _find(self) -> tuple[ModelFile, Signature]:
        file = find_model(self._reference, self._behavior)
        state = answered(file.path, file.path.stat)
        return file, (str(file.path), state.st_ino, state.st_mtime_ns, state.st_size)

    def plain(self) -> dict[str, Any]:
        """Return the model's description for the API."""
        loaded, spec = self.newest, self.newest.spec.to_plain()
        units = action_units(loaded.spec)
        low, high = ([n if isfinite(n) else None for n in bound.tolist()] for bound in (units.low, units.high))
        return {
            "name": self.name,
            "behavior": self.newest.spec.name,
            "file": loaded.path.name,
            "version": loaded.version,
            "step": loaded.step,
            "memory": bool(loaded.policy.memory_size),
            "observations": spec["observations"],
            "actions": spec["actions"] | {"low": low, "high": high, "starts": loaded.terms.starts},
            "action_repeat": spec.get("action_repeat"),
        }


def load_models(references: Sequence[str]) -> list[ServedModel]:
    """Load the models that a command line names.

    Args:
        references: model references, each of which may have a name: `old=results/first@500000`. Without a name, a model
            is named after its behaviour.

    Raises:
        CommandError: if a model can't be read, or two models have the same name.
    """
    models_by_name: dict[str, ServedModel] = {}
    for argument in references:
        try:
            name, reference = _named(argument)
            files = find_models(reference)
            if name and len(files) > 1:
                names = ", ".join(file.behavior for file in files)
                raise RunError(f"{reference} holds several behaviours ({names}), but only one name was given")
            models = [ServedModel(name, reference, file.behavior) for file in files]
        except (RunError, OSError, ValueError) as error:
            raise CommandError(f"--serve {argument}: {str(error).removeprefix(f'{argument}: ')}") from error
        for model in models:
            model.name = model.name or model.newest.spec.name
            if model.name in models_by_name:
                raise CommandError(
                    f"--serve {argument}: there is already a model '{model.name}'; give one of the two a different "
                    f"name, such as other={reference}"
                )
            models_by_name[model.name] = model
    return [*models_by_name.values()]


def _named(argument: str) -> tuple[str, str]:
    name, sign, reference = argument.partition("=")
    if not sign or not {"/", "\\"}.isdisjoint(name) or Path(argument).exists():
        return "", user_path(argument)
    return name, user_path(reference)


def _load(file: ModelFile, signature: Signature, version: int) -> LoadedModel:
    """Read a file's policy and run it once on zeros, to check that it works.

    Raises:
        RunError: if the policy can't be read, or fails.
    """
    model = read_model(file, version=version)
    policy, spec, settings = model.make_policy(), model.spec, model.design.settings
    check_decides(file.path, policy, spec)
    step, weights = max(0, model.update.step), model.update.weights.size
    terms = policy_spaces(spec, str(file.path))
    return LoadedModel(file.path, signature, spec, terms, policy, version, step, weights, settings.deterministic)


async def keep_fresh(models: Sequence[ServedModel], period_s: float) -> None:
    """Look for newer files until cancelled, in a thread, so requests never wait for the disk."""
    await asyncio.gather(*(_keep_fresh(model, period_s) for model in models))


async def _keep_fresh(model: ServedModel, period_s: float) -> None:
    with Disks(UNANSWERED_S, complain, apart=True).used():
        while True:
            await asyncio.sleep(period_s)
            try:
                await in_thread("newer model", model.refresh)
            except Exception as error:  # a damaged file can cause any error; the server must keep answering
                log.exception("%s: could not look for a newer model: %s", model.name, describe_error(error))
