"""What an environment announces of its behaviours, asked of one instance that is closed again at once."""

from __future__ import annotations

from dataclasses import replace

from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import settled


async def announced_specs(request: EnvironmentRequest) -> dict[str, BehaviorSpec]:
    """Return the specs of a run's environment, by behaviour name.

    Raises:
        StageError: if it can't be made or started.
    """
    config = request.config
    one = {"num_envs": 1}
    environment = config.environment and config.environment.model_copy(update=one)
    settings = config.env_settings.model_copy(update=one)
    alone = config.model_copy(update={"environment": environment, "env_settings": settings})
    group = make_group(replace(request, config=alone))
    try:
        await settled(group.reset(request.seed))
        return {spec.name: spec for spec in group.behavior_specs.values()}
    finally:
        closing = group.close()
        if closing is not None:
            await closing
