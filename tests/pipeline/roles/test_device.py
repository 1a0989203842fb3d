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
from headrace.stages.policy.design import BF16, TORCHS_OWN


def test_what_is_configured_is_taken():
    assert choose_device("cpu") == ("cpu", "set by torch_settings.device")


@pytest.mark.parametrize("there", [True, False])
def test_without_a_word_it_is_cuda_where_there_is_one(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    device, why = choose_device(None)
    assert (device, why.split(";")[0]) == (("cuda", "A card") if there else ("cpu", "torch finds no CUDA device"))


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


def test_a_run_on_a_device_that_is_not_there_ends_with_what_to_write(tmp_path):
    with pytest.raises(
        RunFailed, match=r"torch_settings\.device: torch can't compute on 'cuda:99'.*omit --torch-device"
    ):
        run_here(cartpole(torch_settings__device="cuda:99", **INLINE), tmp_path, "run")


@pytest.mark.parametrize(
    ("configured", "by", "expected"),
    [
        ("float32", "AMX", (0, "float32 (torch_settings.precision)", False)),
        ("auto", "AMX", (256, "bf16 for layers of at least 256 units (cpu has AMX)", False)),
        ("auto", None, (0, "float32 (bf16 is slow on cpu)", False)),
        ("bf16", "AMX", (128, "bf16 (AMX)", False)),
    ],
)
def test_the_precision_is_the_configured_one_or_the_faster_one(configured, by, expected, monkeypatch):
    monkeypatch.setattr("headrace.stages.policy.network.products.fast_bf16", lambda device: by)
    settings, *told = choose_rounding(configured, "cpu", "sac")
    assert (settings.rounded_from, *told) == expected


def test_a_trainer_that_was_not_shown_to_learn_as_much_rounds_when_it_is_told_to(monkeypatch):
    monkeypatch.setattr("headrace.stages.policy.network.products.fast_bf16", lambda device: "AMX")
    settings, words, _ = choose_rounding("auto", "cpu", "poca")
    assert settings == TORCHS_OWN
    assert words == "float32 (bf16 has not been shown to learn equally well with poca)"
    assert choose_rounding("bf16", "cpu", "poca").settings == BF16


@pytest.mark.parametrize(
    ("changes", "device", "provider"),
    [
        ({}, "cpu", "auto"),
        ({}, "cuda:0", "torch"),
        ({"torch_settings__products": "numpy"}, "cpu", "numpy"),
        ({"pipeline__deterministic": True}, "cpu", "torch"),
        ({"pipeline__deterministic": True, "torch_settings__products": "onednn"}, "cpu", "onednn"),
    ],
)
def test_who_multiplies_is_measured_but_where_a_run_must_give_the_same_again(changes, device, provider):
    assert choose_provider(RunConfig.from_plain(cartpole(**changes)), device) == provider


@pytest.mark.lengthy
def test_bf16_where_it_is_slow_is_computed_with_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("headrace.stages.policy.network.products.fast_bf16", lambda device: None)
    config = cartpole(torch_settings__precision="bf16", behaviors__CartPole__max_steps=500, **INLINE)
    run_here(config, tmp_path, "run")
    (told,) = [record for record in caplog.records if "hidden-layer matrix products" in record.message]
    assert told.levelno == logging.WARNING
    assert "bf16, which cpu computes more slowly than float32; torch_settings.precision: auto" in told.message


@pytest.mark.parametrize(("trainer", "rows"), [("ppo", 1024), ("impala", 12 * 20), ("sac", 128)])
def test_products_are_measured_with_the_rows_of_a_gradient_step(trainer, rows):
    config = RunConfig.from_plain({"behaviors": {"Ball": {"trainer_type": trainer}}})
    assert products_of(config, config.behaviors["Ball"], "cpu").rows == rows
