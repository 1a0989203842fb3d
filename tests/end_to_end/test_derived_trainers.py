"""A class derived from a built-in trainer, named in the YAML, is treated like its base everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from run_configs import INLINE, Plain, cartpole, sac
from run_folders import digest, read_whole_checkpoint, streams

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.policies.export import read_export
from headrace.pipeline.run import RunResult, run
from headrace.stages.trainer.imitation import load_recorded

MODULE = """
import dataclasses

from headrace.stages.trainer.impala import ImpalaTrainer
from headrace.stages.trainer.sac import SACTrainer


class Derived(SACTrainer):
    pass


class DerivedCloner(ImpalaTrainer):
    pass


class SecretCloner(ImpalaTrainer):
    def __init__(self, context):
        given = {**context.settings.hyperparameters, "policy_cloning_cost": 0.5}
        settings = context.settings.model_copy(update={"hyperparameters": given})
        super().__init__(dataclasses.replace(context, settings=settings))


class OpenCloner(SecretCloner):
    extra_columns = ("action_heads",)
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


def test_a_class_derived_from_sac_and_left_as_it_is_does_what_sac_does(folder):
    for name, kind in (("base", "sac"), ("derived", NAME)):
        run_in(folder, tiny(kind), name)
    base, derived = (read_whole_checkpoint(folder / name) for name in ("base", "derived"))
    assert digest(derived["trainer@learner-Pendulum"]) == digest(base["trainer@learner-Pendulum"])
    assert read_export(next((folder / "derived" / "Pendulum").glob("checkpoint.pt"))).design.squashed
    first, second = (load_recorded(streams(folder / name)[0], "Pendulum") for name in ("base", "derived"))
    np.testing.assert_array_equal(first.continuous, second.continuous)


def cloning(trainer_type: str, cost: float) -> Plain:
    return cartpole(
        behaviors__CartPole__trainer_type=trainer_type,
        behaviors__CartPole__max_steps=800,
        behaviors__CartPole__hyperparameters={
            "batch_size": 16,
            "batch_size_from_replay": 8,
            "unroll_length": 16,
            "policy_cloning_cost": cost,
        },
        behaviors__CartPole__network_settings__normalize=False,  # a class of one's own has the network of all trainers
        behaviors__CartPole__network_settings__activation="swish",
        pipeline__deterministic=True,
        **INLINE,
    )


@pytest.mark.parametrize("cost", [0.5, 0.0])
def test_a_class_derived_from_impala_and_left_as_it_is_clones_what_impala_does(folder, cost):
    for name, kind in (("base", "impala"), ("derived", "derived_trainer:DerivedCloner")):
        run_in(folder, cloning(kind, cost), name)
    base, derived = (read_whole_checkpoint(folder / name) for name in ("base", "derived"))
    assert digest(derived["trainer@learner-CartPole"]) == digest(base["trainer@learner-CartPole"])


def test_a_class_that_gives_its_base_other_settings_has_to_ask_for_what_they_need(folder):
    with pytest.raises(RunFailed, match="needs the column action_heads .* must name the column in extra_columns"):
        run_in(folder, cloning("derived_trainer:SecretCloner", 0.0), "secret")
    run_in(folder, cloning("derived_trainer:OpenCloner", 0.0), "open")
    run_in(folder, cloning("impala", 0.5), "base")
    base, derived = (read_whole_checkpoint(folder / name) for name in ("base", "open"))
    assert digest(derived["trainer@learner-CartPole"]) == digest(base["trainer@learner-CartPole"])


def test_its_hyperparameters_are_checked_as_its_bases(folder):
    plain = tiny(NAME)
    plain["behaviors"]["Pendulum"]["hyperparameters"] |= {"batch_size": 0, "unknown": 1}
    with pytest.raises(RunFailed) as failure:
        run_in(folder, plain, "run")
    assert "behaviors.Pendulum.hyperparameters.batch_size: " in str(failure.value)
    assert "behaviors.Pendulum.hyperparameters.unknown: " in str(failure.value)
