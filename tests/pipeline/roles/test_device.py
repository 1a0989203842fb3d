"""Which torch device a trainer gets, and what is said where there is no such device."""

import logging
import re

import pytest
import torch
from run_configs import INLINE, cartpole
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.roles.device import choose_device, choose_provider, choose_rounding, device_of, products_of


def test_the_configured_device_is_used():
    assert choose_device("cpu") == ("cpu", "set by torch_settings.device")


def test_the_default_device_is_cuda_if_torch_finds_one():
    assert choose_device(None)[0] == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("device", ["cuda:99", "cpuu", "mps:7"])
def test_a_device_that_there_is_none_of_is_refused_with_those_that_there_are(device):
    with pytest.raises(RunError, match=rf"torch_settings\.device: torch can't compute on '{device}': .*one of cpu"):
        choose_device(device)


def test_a_learner_of_a_league_computes_on_the_device_of_its_placement():
    learners = {"main": {"matches": [{"match": "self"}], "placement": {"device": "cpu"}}, "other": {}}
    lost = {**learners, "other": {"placement": {"device": "cuda:99"}}}
    one, other = (
        RunConfig.from_plain({"behaviors": {"Duel": {"league": {"learners": each}}}}) for each in (learners, lost)
    )
    key = "behaviors.Duel.league.learners.{}.placement.device"
    assert device_of(one, "Duel.main") == ("cpu", f"set by {key.format('main')}")
    assert device_of(one, "Duel.other") == choose_device(None)
    with pytest.raises(RunError, match=rf"{re.escape(key.format('other'))}: torch can't compute on 'cuda:99'.*omit it"):
        device_of(other, "Duel.other")


@pytest.mark.lengthy
def test_a_run_says_where_its_trainers_compute(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run_here(cartpole(torch_settings__device="cpu", behaviors__CartPole__max_steps=500, **INLINE), tmp_path, "run")
    assert "CartPole learns on cpu (set by torch_settings.device)." in caplog.text


def test_a_run_on_a_missing_device_ends_with_a_suggestion(tmp_path):
    with pytest.raises(
        RunFailed, match=r"torch_settings\.device: torch can't compute on 'cuda:99'.*omit --torch-device"
    ):
        run_here(cartpole(torch_settings__device="cuda:99", **INLINE), tmp_path, "run")


@pytest.mark.parametrize(
    ("configured", "trainer", "rounded_from"),
    [("float32", "sac", 0), ("bf16", "sac", 128), ("bf16", "poca", 128), ("auto", "poca", 0)],
)
def test_the_precision_is_the_configured_one_and_auto_rounds_only_with_trainers_that_were_shown_to_learn(
    configured, trainer, rounded_from
):
    assert choose_rounding(configured, "cpu", trainer).settings.rounded_from == rounded_from


@pytest.mark.parametrize(
    ("changes", "device", "provider"),
    [
        ({}, "cpu", "auto"),
        ({}, "cuda:0", "torch"),
        ({"torch_settings__products": "numpy"}, "cpu", "numpy"),
        ({"pipeline__deterministic": True}, "cpu", "torch"),
        ({"pipeline__deterministic": True, "torch_settings__products": "numpy"}, "cpu", "numpy"),
    ],
)
def test_the_kernels_are_measured_unless_a_run_must_be_reproducible(changes, device, provider):
    assert choose_provider(RunConfig.from_plain(cartpole(**changes)), device) == provider


@pytest.mark.parametrize(("trainer", "rows"), [("ppo", 1024), ("impala", 12 * 20), ("sac", 128)])
def test_products_are_measured_with_the_rows_of_a_gradient_step(trainer, rows):
    config = RunConfig.from_plain({"behaviors": {"Ball": {"trainer_type": trainer}}})
    assert products_of(config, config.behaviors["Ball"], "cpu").rows == rows
