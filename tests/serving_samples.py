"""Models in files, and a policy server over them in this process, for tests of serving."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx_samples import design_for, live_policy, update_for
from runs import COMMAND

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


@contextmanager
def served(folder: Path, *arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and what it has said up to the line that says that it serves."""
    line = [sys.executable, str(COMMAND), "--serve", *map(str, arguments)]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Serving" not in said:
                more = process.stdout.readline()
                assert more, said
                said += more
            yield process, said
        finally:
            process.kill()


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    """The status of an answer of a policy server, and what it says."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
