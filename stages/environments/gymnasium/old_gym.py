"""Advice on converting environments that use the old package `gym` or its four-value `step` API."""

from __future__ import annotations

import sys
from typing import Any

from headrace.stages.environments.resetting import taken_by

OLD_STEP = "four values are Gym's old API: split `done` into terminated (the task ended) and truncated (time ran out)"


def conversion(env_id: str = "…", seeded: bool | None = None) -> str:
    """Explain how to use shimmy to convert an environment of the old package `gym`, given as an id or an object.

    Args:
        env_id: the id in `gym`.
        seeded: True if the environment's `reset` takes a seed, as it does since 0.26; None if that depends on the
            version.
    """
    version = str(getattr(sys.modules.get("gym"), "__version__", "0.21"))
    new = version.startswith("0.26") if seeded is None else seeded
    converter = "GymV26Environment-v0" if new else "GymV21Environment-v0"
    return (
        f"the package shimmy converts environments of the old package gym. If gym has registered the environment, use "
        f'environment: {{id: "shimmy:{converter}", options: {{env_id: "{env_id}"}}}}; otherwise import shimmy in a '
        f'factory that returns gymnasium.make("{converter}", env=YourEnv())'
    )


def advice_for_class(env: Any) -> str:
    """Return advice for an object of the package `gym`, or one with the same methods; empty for other objects."""
    if isinstance(env, type):
        return ". It is a class; return an instance of the class"
    if not any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        alike = all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space"))
        return (
            (". Derive its class from gymnasium.Env, with a reset that returns two values and a step that returns five")
            if alike
            else ""
        )
    env_id = getattr(getattr(env, "spec", None), "id", None) or "…"
    reset = getattr(getattr(env, "unwrapped", env), "reset", None)
    return f"; {conversion(env_id, callable(reset) and 'seed' in taken_by(reset))}"


def advice_for_id(env_id: str) -> str:
    """Return advice for an id that only the old package `gym` has registered. Empty for other ids or without `gym`."""
    registry = getattr(sys.modules.get("gym.envs.registration"), "registry", None)
    specs = getattr(registry, "env_specs", registry)  # a mapping since 0.26
    if specs is None or env_id.rpartition(":")[2] not in specs:
        return ""
    return f"; {conversion(env_id)}"
