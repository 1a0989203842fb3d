"""A class derived from a built-in trainer, named in the YAML, is treated like its base everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from run_configs import INLINE, Plain, sac
from run_folders import digest, read_whole_checkpoint, streams

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.policies.export import read_export
from headrace.pipeline.run import RunResult, run
from headrace.stages.trainer.imitation.loading import load_demonstrations

MODULE = """
from headrace.stages.trainer.sac import SACTrainer


class Derived(SACTrainer):
    pass
"""
NAME = "derived_trainer:Derived"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A YAML's folder with a module of the user's own."""
    (tmp_path / "derived_trainer.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("derived_trainer", None)


def run_in(folder: Path, plain: Plain, run_id: str) -> RunResult:
    whole = {**plain, "checkpoint_settings": {"results_dir": str(folder), "run_id": run_id}}
    return run(RunConfig.from_plain(whole, folder / "config.yaml"))


def tiny(trainer_type: str) -> Plain:
    return sac(
        behaviors__Pendulum__trainer_type=trainer_type,
        behaviors__Pendulum__max_steps=150,
        behaviors__Pendulum__hyperparameters__learning_rate=3e-4,
        behaviors__Pendulum__hyperparameters__random_steps=0,  # those of all trainers, which a class of one's own has
        behaviors__Pendulum__network_settings__activation="swish",
        pipeline__deterministic=True,
        record__edges=["trainer"],
        **INLINE,
    )


def test_an_unchanged_class_derived_from_sac_learns_as_sac_does(folder):
    for name, kind in (("base", "sac"), ("derived", NAME)):
        run_in(folder, tiny(kind), name)
    base, derived = (read_whole_checkpoint(folder / name) for name in ("base", "derived"))
    assert digest(derived["trainer@learner-Pendulum"]) == digest(base["trainer@learner-Pendulum"])
    assert read_export(next((folder / "derived" / "Pendulum").glob("checkpoint.pt"))).design.squashed
    first, second = (load_demonstrations(streams(folder / name)[0], "Pendulum") for name in ("base", "derived"))
    np.testing.assert_array_equal(first.continuous, second.continuous)


def test_hyperparameters_of_a_derived_trainer_are_checked(folder):
    plain = tiny(NAME)
    plain["behaviors"]["Pendulum"]["hyperparameters"] |= {"batch_size": 0, "unknown": 1}
    with pytest.raises(RunFailed) as failure:
        run_in(folder, plain, "run")
    assert "behaviors.Pendulum.hyperparameters.batch_size: " in str(failure.value)
    assert "behaviors.Pendulum.hyperparameters.unknown: " in str(failure.value)
