"""The example of two tasks one after the other: what is replayed and cloned is not forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run import run
from headrace.stages.loading import load_attribute

FOLDER = Path(__file__).parents[2] / "examples" / "replayed_tasks"
NO_REPLAY = ["batch_size=16", "batch_size_from_replay=0", "policy_cloning_cost=0.01", "value_cloning_cost=0.005"]


def carts(name):
    return load_attribute(f"two_carts:{name}", FOLDER, "example")


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "kept"), [([], True), (NO_REPLAY, False)], ids=["replayed", "not replayed"])
def test_replay_and_cloning_preserve_a_task_while_another_is_learned(changes, kept, tmp_path):
    overrides = [
        *(f"behaviors.Carts.hyperparameters.{change}" for change in changes),
        "behaviors.Carts.checkpoint_interval=100000",
        f"checkpoint_settings.results_dir={tmp_path}",
        "pipeline.deterministic=true",
    ]
    folder = run(load_config(FOLDER / "config.yaml", overrides)).folder
    by_step = sorted((folder / "Carts").glob("Carts-*.pt"), key=lambda path: int(path.stem.rpartition("-")[2]))
    after_a, after_b, *_ = (load_acting_policy(path) for path in by_step)
    peak = carts("score")(after_a, False)
    assert peak > 150
    assert carts("score")(after_a, True) < 20
    assert carts("score")(after_b, True) > 100
    assert (carts("score")(after_b, False) >= 0.8 * peak) == kept
