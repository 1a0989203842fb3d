"""The settings and spec that a checkpoint fixes for each behaviour, because its state is valid only with them.

Each checkpoint's manifest contains them. A resumed run compares its own settings and spec with them before it writes
anything: the settings before it starts anything, the spec when the behaviour appears in the environment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config import BehaviorSettings, NetworkSettings, RunConfig
from headrace.config.errors import dotted
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import check_spec
from headrace.pipeline.run_folder.checkpoint import Checkpoint
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.spaces.own_space import from_plain
from headrace.stages.errors import StageError
from headrace.startup_context import shown

log = logging.getLogger(__name__)

FIXED = "fixed"
"""Key in a manifest's `progress`."""


def fixed_by(settings: BehaviorSettings, spec: BehaviorSpec) -> dict[str, Any]:
    """Return the settings and spec that a behaviour's checkpoint fixes, as plain data."""
    return {"settings": _settings(settings, spec), "spec": spec.to_plain()}


def check_settings(config: RunConfig, checkpoint: Checkpoint) -> None:
    """Check that the settings fixed by a checkpoint are unchanged.

    Raises:
        RunError: if settings have changed; the message lists each change and the remedy.
    """
    mistakes = []
    for name, fixed in checkpoint.progress.get(FIXED, {}).items():
        settings = config.behaviors.get(name, config.default_settings)
        if settings is None or not settings.learns:
            if fixed["settings"].get("self_play"):  # the other sides need its games and turns
                mistakes.append(f"behaviors.{name}: took part in self-play, and must learn with self_play again")
            continue
        block = ("behaviors", name) if name in config.behaviors else ("default_settings",)
        now = _settings(settings, BehaviorSpec.from_plain(fixed["spec"]))
        for key, was in fixed["settings"].items():
            begins_self_play = (key, was) == ("self_play", False)
            if key in now and now[key] != was and not begins_self_play:
                path = (*block, *key.split("."))
                text = f"{dotted(path)} is {_text(now[key])}, but the checkpoint was written with {_text(was)}"
                mistakes.append(config.in_place(path, text))
    if mistakes:
        raise RunError("\n".join([*mistakes, _cure(config, checkpoint)]))


def check_fixed_spec(config: RunConfig, checkpoint: Checkpoint, spec: BehaviorSpec) -> None:
    """Check that a behaviour's observations and actions are unchanged; warn if only the range of a space differs.

    Raises:
        RunError: if they have changed; the message gives the difference and the remedy.
    """
    fixed = checkpoint.progress.get(FIXED, {}).get(spec.name)
    if fixed is None:
        if checkpoint.steps and spec.name not in checkpoint.steps:
            has = ", ".join(checkpoint.steps)
            log.warning(
                "%s starts from step 0, because the checkpoint in %s does not contain this behaviour (it contains: "
                "%s).",
                spec.name,
                shown(checkpoint.folder),
                has,
            )
        return
    was = BehaviorSpec.from_plain(fixed["spec"])
    try:
        check_spec(was, spec)
    except StageError as error:
        raise RunError(f"{spec.name} can't continue: {error}. {_cure(config, checkpoint)}") from error
    for part, before in (was.spaces or {}).items():
        now = (spec.spaces or {}).get(part)
        if isinstance(before, Mapping) and isinstance(now, Mapping) and before != now and "kind" in before:
            text = "%s: the environment's %s space was %s when the checkpoint was written, and is now %s."
            log.warning(text, spec.name, part, from_plain(before), from_plain(now))


def _settings(settings: BehaviorSettings, spec: BehaviorSpec) -> dict[str, Any]:
    """Return the fixed settings as JSON values, keyed by their names within the behaviour's block."""
    fixed: dict[str, Any] = {"trainer_type": settings.trainer_type, "self_play": settings.self_play is not None}
    fixed["reward_signals"] = sorted(settings.signals)
    fixed.update(_network("network_settings", settings.network_settings, spec))
    for name, signal in settings.learned_signals.items():
        at = f"reward_signals.{name}"
        fixed.update(_network(f"{at}.network_settings", signal.network_settings, spec))
        for key in ("use", "use_actions", "use_vail"):
            if hasattr(signal, key):
                fixed[f"{at}.{key}"] = getattr(signal, key)
    return fixed


def _network(at: str, network: NetworkSettings, spec: BehaviorSpec) -> Iterator[tuple[str, Any]]:
    """Yield the settings that determine a network's parameters and computation, with their keys."""
    observed = {observation.kind for observation in spec.observations}
    kinds = [kind for name, kind in OBSERVATION_KINDS.items() if name in observed]
    yield f"{at}.hidden_units", list(network.widths)
    yield f"{at}.memory", None if network.memory is None else network.memory.memory_size
    yield f"{at}.activation", network.activation
    yield f"{at}.gsde", None if network.gsde is None else "a map"
    for key in () if network.gsde is None else ("full_std", "use_expln", "squash_output", "clip_mean"):
        yield f"{at}.gsde.{key}", getattr(network.gsde, key)
    yield f"{at}.network", network.network
    if any(kind.flat for kind in kinds):
        yield f"{at}.normalize", network.normalize
    if any(kind.pixels for kind in kinds):
        yield f"{at}.vis_encode_type", network.vis_encode_type
    if any(observation.goal for observation in spec.observations):
        yield f"{at}.goal_conditioning_type", network.goal_conditioning_type


def _cure(config: RunConfig, checkpoint: Checkpoint) -> str:
    settings = shown(checkpoint.folder.parent.parent / CONFIGURATION)
    return (
        f"The checkpoint in {shown(checkpoint.folder)} can be resumed only with the settings that the run started with "
        f"({settings}). Restore these settings, or start a new run from its policy: choose a different --run-id, and "
        f"add --initialize-from={config.checkpoint_settings.run_id}"
    )


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
