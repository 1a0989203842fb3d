"""Specifications of exported policies: what is read acts like what was written, and what is there is whole."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from fakes_files import Faulty, Recorder, Stopped

from config import BehaviorSettings
from pipeline.export import export_policy, numbered, read_policy
from queues.messages import PolicyUpdate
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.policy import NumpyPolicy, policy_layout

SPEC = BehaviorSpec("Ball?team=0", (ObservationSpec("court", (5,)),), ActionSpec(1, (3, 2)))
SETTINGS = BehaviorSettings.model_validate(
    {"keep_checkpoints": 2, "network_settings": {"hidden_units": 8, "normalize": True}}
)


def policy(step=100, seed=0):
    layout = policy_layout(SPEC, SETTINGS.network_settings)
    size = sum(int(np.prod(shape)) for _, shape in layout)
    weights = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    return PolicyUpdate("Ball", step // 50, weights, layout, step)


def names(folder):
    return sorted(path.name for path in (folder / "Ball").iterdir())


def test_a_policy_that_is_read_is_the_one_that_was_written(tmp_path):
    written = policy()
    path = export_policy(tmp_path, written, SPEC, SETTINGS)
    assert path == tmp_path / "Ball" / "Ball-100.pt"
    read, spec, network_settings = read_policy(path)
    assert spec == SPEC
    assert (read.version, read.step, read.layout) == (2, 100, written.layout)
    np.testing.assert_array_equal(read.weights, written.weights)
    assert network_settings == SETTINGS.network_settings.model_dump(mode="json")


def test_a_policy_that_is_read_acts_like_the_one_that_was_written(tmp_path):
    read, spec, _ = read_policy(export_policy(tmp_path, policy(), SPEC, SETTINGS))
    observations = (np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32),)
    decisions = []
    for update in (policy(), read):
        acting = NumpyPolicy(spec, SETTINGS.network_settings)
        acting.load(update)
        decisions.append(acting.act(observations, None, np.random.default_rng(2)))
    np.testing.assert_array_equal(decisions[0].actions.continuous, decisions[1].actions.continuous)
    np.testing.assert_array_equal(decisions[0].actions.discrete, decisions[1].actions.discrete)


def test_the_file_is_one_of_plain_tensors(tmp_path):
    content = torch.load(export_policy(tmp_path, policy(), SPEC, SETTINGS), weights_only=True)
    assert content["step"] == 100
    assert all(isinstance(tensor, torch.Tensor) for tensor in content["weights"].values())


def test_the_newest_by_step_are_kept_and_labelled_ones_are_not_counted(tmp_path):
    export_policy(tmp_path, policy(), SPEC, SETTINGS, label="best")
    for step in (50, 900, 1000):
        export_policy(tmp_path, policy(step), SPEC, SETTINGS)
    assert names(tmp_path) == ["Ball-1000.pt", "Ball-900.pt", "Ball-best.pt"]
    assert [path.stem for path in numbered(tmp_path / "Ball", "Ball")] == ["Ball-900", "Ball-1000"]


def test_all_are_kept_where_the_configuration_says_so(tmp_path):
    for step in (50, 900, 1000):
        export_policy(tmp_path, policy(step), SPEC, SETTINGS.model_copy(update={"keep_checkpoints": 0}))
    assert len(names(tmp_path)) == 3


def test_files_of_others_are_neither_counted_nor_removed(tmp_path):
    (tmp_path / "Ball").mkdir()
    others = ["Ball-2-3.pt", "Ball-old.pt", "Ballast-7.pt", "Ball-5.onnx", "notes.txt"]
    for name in others:
        (tmp_path / "Ball" / name).touch()
    for step in (50, 900, 1000):
        export_policy(tmp_path, policy(step), SPEC, SETTINGS)
    assert names(tmp_path) == sorted([*others, "Ball-900.pt", "Ball-1000.pt"])


@pytest.mark.parametrize("stop", [False, True])
def test_whatever_goes_wrong_every_export_that_is_there_is_whole(tmp_path, stop):
    recorder = Recorder()
    for step in (100, 200, 300):
        export_policy(tmp_path / "probe", policy(step), SPEC, SETTINGS, files=recorder)
    for at in range(len(recorder.done)):
        folder, files = tmp_path / str(at), Faulty(at, stop)
        for step in (100, 200, 300):
            with contextlib.suppress(OSError, Stopped):
                export_policy(folder, policy(step, seed=step), SPEC, SETTINGS, files=files)
        for path in numbered(folder / "Ball", "Ball"):
            read, _, _ = read_policy(path)
            np.testing.assert_array_equal(read.weights, policy(read.step, seed=read.step).weights)
        if not stop:  # an export lost is an export lost, the others are there
            assert {read_policy(path)[0].step for path in numbered(folder / "Ball", "Ball")} & {200, 300}


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 half a zip"])
def test_a_file_that_is_none_is_named(tmp_path, content):
    path = tmp_path / "Ball-1.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"Ball-1\.pt: is not an exported policy"):
        read_policy(path)


def test_a_file_that_would_run_code_when_read_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("caught",))

    path = tmp_path / "Ball-1.pt"
    torch.save({"weights": {}, "spec": Trap()}, path)
    with pytest.raises(ValueError, match="is not an exported policy"):
        read_policy(path)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_policy(tmp_path / "Ball-1.pt")
