"""Models in files, and a policy server over them in this process, for tests of serving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx_samples import design_for, live_policy, update_for

from headrace.config import BehaviorSettings
from headrace.pipeline.policies.export import export_policy
from headrace.pipeline.serving.served_models import load_models
from headrace.pipeline.serving.service import PolicyService
from headrace.queues.specs import ActionSpec, ObservationSpec

HYBRID = ActionSpec(2, (3, 2), masked=True)
PICTURE = ObservationSpec("eye", (3, 20, 20), "uint8")
MEMORY = {"memory_size": 6, "sequence_length": 4}


def write_model(run_folder: Path, behavior="Ball", step=500, seed=0, observed=(), actions=HYBRID, **settings) -> Path:
    """A policy with weights that matter, as a run would have left it."""
    design = design_for(*observed, actions=actions, **settings)
    spec = replace(design.spec, behavior_id=behavior)
    network = {"hidden_units": 16, "num_layers": 2, **settings}
    block = BehaviorSettings.model_validate({"network_settings": network})
    return export_policy(run_folder, update_for(design, seed, step), spec, block)


def expected(observations, seed=0, recall=None, masks=None, observed=(), actions=HYBRID, **settings) -> Any:
    """The most likely decision of such a policy."""
    design = design_for(*observed, actions=actions, **settings)
    policy = live_policy(design, update_for(design, seed))
    arrays = tuple(
        np.asarray(each, spec.dtype) for each, spec in zip(observations, design.spec.observations, strict=True)
    )
    return policy.act(arrays, masks, np.random.default_rng(0), True, recall)


@asynccontextmanager
async def serving(*references: Path | str, **options: Any) -> AsyncIterator[PolicyService]:
    """A service over these models, at work."""
    given = {"deterministic": True, "seed": 0, "clock": asyncio.get_running_loop().time, **options}
    service = PolicyService(load_models([str(each) for each in references]), **given)
    running = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
