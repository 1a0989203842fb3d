"""Specifications of served models: their names, and newer files, whole, broken, unfit and gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from serving_samples import MEMORY, write_model

from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.serving.served_models import load_models
from headrace.queues.disks import Disks
from headrace.queues.specs import ActionSpec


def steps(models):
    return {model.name: model.newest.step for model in models}


def test_models_are_named_after_their_behaviours_or_by_the_command(tmp_path):
    old = write_model(tmp_path, "Ball", 500)
    write_model(tmp_path, "Ball", 1000)
    write_model(tmp_path, "Wall", 700)
    assert steps(load_models([str(tmp_path), f"old={old}"])) == {"Ball": 1000, "Wall": 700, "old": 500}
    assert steps(load_models([f"first={tmp_path}/Ball@500"])) == {"first": 500}


def test_references_that_can_not_be_served_are_named(tmp_path):
    path = write_model(tmp_path, "Ball")
    write_model(tmp_path, "Wall")
    for references, words in (
        (
            [str(path), str(path)],
            f"--serve {path}: there is already a model 'Ball'; give one of the two a different name",
        ),
        ([f"one={tmp_path}"], r"holds several behaviours \(Ball, Wall\), but only one name was given"),
        ([str(tmp_path / "none")], "there is no file or folder"),
        ([str(tmp_path / "none.pt")], "there is no file or folder"),
    ):
        with pytest.raises(CommandError, match=words):
            load_models(references)
    path.write_bytes(b"no model")
    with pytest.raises(CommandError, match=f"--serve {path}: "):
        load_models([str(path)])
    other = path.with_suffix(".onnx")
    other.write_bytes(b"no model")
    with pytest.raises(CommandError, match=f"^--serve {other}: is not a model that onnxruntime can run"):
        load_models([str(other)])


def test_a_newer_checkpoint_of_a_run_takes_the_place_of_the_one_before(tmp_path):
    write_model(tmp_path, step=500)
    (model,) = load_models([str(tmp_path)])
    first = model.newest
    model.refresh()
    assert model.newest is first
    write_model(tmp_path, step=1000, seed=1)
    model.refresh()
    assert (model.newest.step, model.newest.version) == (1000, 2)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_newer_file_that_is_not_a_regular_file_is_refused_and_does_not_stop_later_ones(tmp_path, caplog):
    write_model(tmp_path, step=500)
    (model,) = load_models([str(tmp_path)])
    pipe = model.newest.path.with_name("Ball-1000.pt")
    os.mkfifo(pipe)
    for _ in range(2):
        model.refresh()
    assert caplog.text.count(f"{pipe} is not a regular file") == 1
    write_model(tmp_path, step=2000, seed=1)
    model.refresh()
    assert model.newest.step == 2000


def test_a_newer_file_whose_disk_hangs_is_named_and_does_not_stop_later_ones(tmp_path, caplog, monkeypatch):
    write_model(tmp_path, step=500)
    (model,) = load_models([str(tmp_path)])
    hanging, answers, told = write_model(tmp_path, step=1000), threading.Event(), []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: (path != hanging or answers.wait(20)) and is_file(path))
    with Disks(0.05, told.append, checked_s=0.01, apart=True).used():
        model.refresh()
        assert [str(hanging) in line for line in told] == [True]
        assert f"still serving the previous one: the disk or storage has not answered for 0 s: {hanging}" in caplog.text
        write_model(tmp_path, step=2000)
        model.refresh()
    assert model.newest.step == 2000
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "file call":
            thread.join()


def test_a_file_that_is_replaced_is_read_again_and_a_chosen_step_stays(tmp_path):
    path = write_model(tmp_path, step=500)
    file, chosen = load_models([str(path), f"chosen={tmp_path}@500"])
    write_model(tmp_path, step=1000)
    for model in (file, chosen):
        model.refresh()
        assert (model.newest.step, model.newest.version) == (500, 1)
    other = tmp_path / "other.pt"
    shutil.copy(write_model(tmp_path / "other", step=900), other)
    os.replace(other, path)
    file.refresh()
    assert (file.newest.step, file.newest.version) == (900, 2)


def test_a_half_written_file_is_reported_once_and_read_when_it_is_whole(tmp_path, caplog):
    path = write_model(tmp_path, step=500)
    (model,) = load_models([str(path)])
    whole = write_model(tmp_path / "newer", step=900).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for _ in range(3):
        model.refresh()
        assert model.newest.step == 500
    assert caplog.text.count("Ball: a newer model can't be served; still serving the previous one: ") == 1
    path.write_bytes(whole)
    model.refresh()
    assert model.newest.step == 900


def test_a_model_that_is_gone_is_reported_once(tmp_path, caplog):
    path = write_model(tmp_path, step=500)
    (model,) = load_models([str(path)])
    path.unlink()
    for _ in range(3):
        model.refresh()
    assert (model.newest.step, caplog.text.count("still serving the previous one")) == (500, 1)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"actions": ActionSpec(3)}, "different actions: 3 continuous actions; clients expect 2 continuous"),
        ({"memory": MEMORY}, {}, "its memory has 0 numbers, but the open sessions hold 6"),
    ],
)
def test_a_model_that_does_not_fit_its_clients_is_not_served(tmp_path, caplog, before, after, words):
    path = write_model(tmp_path, step=500, **before)
    (model,) = load_models([str(path)])
    os.replace(write_model(tmp_path / "newer", step=900, **after), path)
    model.refresh()
    assert model.newest.step == 500
    assert words in caplog.text


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.serving.served_models import load_models
for path in sys.argv[1:]:
    try:
        print(load_models([path])[0].name)
    except CommandError as error:
        print(error)
"""


def test_without_torch_a_model_is_served_unless_its_network_needs_torch(tmp_path):
    onnx = Path(__file__).parents[2] / "data" / "ml_agents" / "ppo_hybrid" / "Simple.onnx"
    plain, other = write_model(tmp_path), write_model(tmp_path, "Wall", memory=MEMORY)
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, (onnx, plain, other))]
    done = subprocess.run(command, capture_output=True, text=True)
    *served, refused = done.stdout.splitlines()
    assert served == ["Simple", "Ball"]
    assert refused.endswith('; run `pip install "headrace[train]"`')
