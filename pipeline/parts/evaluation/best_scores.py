"""Best policies' scores, and the settings under which they were achieved. A score is part of its policy's file.

Policy and score are therefore replaced together. Only scores that were achieved under the same settings are comparable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.config.fields import Settings
from headrace.pipeline.common.lessons import final_parameters
from headrace.pipeline.policies.export import read_score
from headrace.pipeline.run_folder.checkpoint import checksum_of
from headrace.stages.environments.given import identity_of

_ENVIRONMENT_KEYS_WITHOUT_EFFECT = {"factory", "num_envs", "info_keys", "keys", "sides"}
_PROGRAM_KEYS = {"env_path", "env_args", "side_channels"}
_GRAPHICS_KEYS = {"no_graphics", "no_graphics_monitor"}


def environment_checksum(config: RunConfig) -> str:
    """Return a checksum of everything in the configuration that determines a run's environments, but not their number.

    Main calls this function, because it has the environment that a caller of `run` passed.
    """
    environment = config.environment
    return checksum_of(
        {
            "section": _plain(environment, exclude=_ENVIRONMENT_KEYS_WITHOUT_EFFECT),
            "factory": identity_of(environment.factory) if environment is not None else None,
            "program": _plain(config.env_settings, include=_PROGRAM_KEYS),
            "engine": _plain(config.engine_settings, exclude=_GRAPHICS_KEYS),
            "parameters": final_parameters(config.environment_parameters).parameters,
        }
    )


def conditions(config: RunConfig, behavior: str, environment: str) -> dict[str, str]:
    """Return checksums of the settings that determine what a behaviour's score means, keyed by what they are about.

    Args:
        config: the run's configuration.
        behavior: the behaviour's name.
        environment: the `environment_checksum`.
    """
    settings = config.known_settings(behavior)
    brains = {name: [_plain(brain) for brain in each.brain] for name, each in config.behaviors.items() if each.brain}
    return {
        "environment": environment,
        "reward_signals": checksum_of(_plain(settings and settings.reward_signals)),
        "evaluation": checksum_of({"evaluation": _plain(config.evaluation, exclude={"every"}), "brains": brains}),
    }


def standing_score(policy: Path, config: RunConfig, environment: str) -> tuple[str, float | None, str]:
    """Return the behaviour's name and the score of a best policy's file.

    Returns:
        The name; the mean return, or None if it does not count under the present settings; and why it does not count.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is damaged or contains no score.
    """
    score = read_score(policy)
    try:
        name, mean, was = str(score["behavior"]), float(score["mean"]), dict(score["conditions"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"{policy} has a score of another form ({error!r})") from error
    changed = [key for key, now in conditions(config, name, environment).items() if was.get(key) != now]
    if not changed:
        return name, mean, ""
    words = f"was achieved with different settings ({', '.join(changed)})"
    return name, None, f"{policy}: the score, {mean:.3f} at step {score.get('step')}, {words}"


def _plain(settings: Settings | None, **which: Any) -> Any:
    """Return settings as JSON values, without those that have their defaults."""
    return {} if settings is None else settings.model_dump(mode="json", by_alias=True, exclude_defaults=True, **which)
