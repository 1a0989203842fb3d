"""Files of each version of ML-Agents build their pipeline: it can be described, and each behaviour has its trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_files import FILES, name_of
from trainer_samples import CONTINUOUS, VECTOR, demonstrations

from headrace.config import BCHyperparameters, BehaviorSettings, RunConfig, load_config
from headrace.pipeline.command.description import describe
from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext


def trainers_of(config: RunConfig, folder: Path) -> dict[str, Trainer]:
    """Make the trainers of all behaviours of a file, for made-up agents and demonstrations; like ones only once."""
    blocks = {name: config.behavior_settings(name) for name in config.behaviors or ["Anyone"]}
    different = {repr(settings): (name, settings) for name, settings in blocks.items()}
    return {name: trainer_of(name, settings, folder) for name, settings in different.values()}


def trainer_of(name: str, settings: BehaviorSettings, folder: Path) -> Trainer:
    spec = BehaviorSpec(f"{name}?team=0", (VECTOR,), replace(CONTINUOUS), grouped=settings.trainer_type == "poca")
    block = with_demonstrations(settings.model_dump(mode="json", by_alias=True), folder / "made-up.stream", spec)
    return make_trainer(TrainerContext(name, BehaviorSettings.model_validate(block), spec, folder=folder))


def with_demonstrations(part: Any, path: Path, spec: BehaviorSpec) -> Any:
    """Put a recording in place of each `demo_path`."""
    if not isinstance(part, dict):
        return part
    demo = part.get("demo_path")
    if demo is not None and not path.exists():
        demonstrations(path, BehaviorSpec(spec.behavior_id, spec.observations, spec.actions))
    made = {key: with_demonstrations(value, path, spec) for key, value in part.items()}
    return {**made, "demo_path": str(path)} if demo is not None else made


@pytest.mark.parametrize("path", FILES, ids=map(name_of, FILES))
def test_a_file_builds_its_pipeline(path: Path, tmp_path: Path):
    config = load_config(path)
    described = describe(config)
    for name, settings in config.behaviors.items():
        assert f"behavior {name}: " in described
        assert f"trainer {settings.trainer_type}" in described
    for name, trainer in trainers_of(config, tmp_path).items():
        settings = config.behavior_settings(name)
        imitates = isinstance(settings.hyperparameters, BCHyperparameters)
        assert trainer.step == 0
        assert imitates or trainer.policy().weights.size > settings.network_settings.widths[0]
