"""Which torch device a trainer gets, and what is said where there is no such device."""

import logging

import pytest
import torch
from run_configs import INLINE, cartpole
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.roles.device import choose_device, choose_precision


def test_what_is_configured_is_taken():
    assert choose_device("cpu") == ("cpu", "as torch_settings.device says")


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


def test_a_run_says_where_its_trainers_compute(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run_here(cartpole(torch_settings__device="cpu", behaviors__CartPole__max_steps=500, **INLINE), tmp_path, "run")
    assert "CartPole learns on cpu (as torch_settings.device says)." in caplog.text


def test_a_run_on_a_device_that_is_not_there_ends_with_what_to_write(tmp_path):
    with pytest.raises(RunFailed, match=r"torch_settings\.device: torch can't compute on 'cuda:99'.*no --torch-device"):
        run_here(cartpole(torch_settings__device="cuda:99", **INLINE), tmp_path, "run")


@pytest.mark.parametrize(
    ("configured", "by", "expected"),
    [
        ("float32", "AMX", (False, "float32", False)),
        ("auto", "AMX", (True, "bf16 (cpu has AMX)", False)),
        ("auto", None, (False, "float32 (bf16 is slow on cpu)", False)),
        ("bf16", "AMX", (True, "bf16 (AMX)", False)),
    ],
)
def test_the_precision_is_the_configured_one_or_the_faster_one(configured, by, expected, monkeypatch):
    monkeypatch.setattr("headrace.stages.policy.network.layers.fast_bf16", lambda device: by)
    assert choose_precision(configured, "cpu") == expected


def test_bf16_where_it_is_slow_is_computed_with_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("headrace.stages.policy.network.layers.fast_bf16", lambda device: None)
    config = cartpole(torch_settings__precision="bf16", behaviors__CartPole__max_steps=500, **INLINE)
    run_here(config, tmp_path, "run")
    (told,) = [record for record in caplog.records if "hidden products" in record.message]
    assert told.levelno == logging.WARNING
    assert "bf16, which cpu computes more slowly than float32; torch_settings.precision: auto" in told.message
