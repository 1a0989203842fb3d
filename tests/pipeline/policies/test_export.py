"""Specifications of exported policies: what is read acts like what was written, and what is there is whole."""

from __future__ import annotations

import contextlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes_files import Faulty, Recorder, Stopped

from headrace.config import BehaviorSettings
from headrace.pipeline.policies.export import (
    NEWEST,
    export_policy,
    exports_by_step,
    is_export,
    load_acting_policy,
    read_export,
    step_in_name,
)
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign, design_of, policy_layout
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import Recall

SPEC = BehaviorSpec("Ball?team=0", (ObservationSpec("court", (5,)),), ActionSpec(1, (3, 2)))
SETTINGS = BehaviorSettings.model_validate(
    {"keep_checkpoints": 2, "network_settings": {"hidden_units": 8, "normalize": True}}
)


def settings_for(trainer_type="ppo", **network_settings):
    block = {"trainer_type": trainer_type, "network_settings": {"hidden_units": 8, **network_settings}}
    return BehaviorSettings.model_validate(block)


def policy(step=100, seed=0, spec=SPEC, settings=SETTINGS):
    layout = policy_layout(design_of(spec, settings))
    size = sum(int(np.prod(shape)) for _, shape in layout)
    weights = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    return PolicyUpdate("Ball", step // 50, weights, layout, step)


def names(folder):
    """All files but the newest export's second name."""
    return sorted(path.name for path in (folder / "Ball").iterdir() if path.name != NEWEST)


def test_a_policy_that_is_read_is_the_one_that_was_written(tmp_path):
    written = policy()
    path = export_policy(tmp_path, written, SPEC, SETTINGS)
    assert path == tmp_path / "Ball" / "Ball-100.pt"
    read = read_export(path)
    assert read.design == PolicyDesign(SPEC, SETTINGS.network_settings)
    assert (read.update.version, read.update.step, read.update.layout) == (2, 100, written.layout)
    np.testing.assert_array_equal(read.update.weights, written.weights)
    assert (read.trainer_type, read.learner) == ("ppo", None)


def test_a_policy_that_is_read_acts_like_the_one_that_was_written(tmp_path):
    assert_acts_alike(tmp_path, SPEC, SETTINGS)


def assert_acts_alike(folder, spec, settings):
    written = policy(spec=spec, settings=settings)
    original = make_policy(design_of(spec, settings))
    original.load(written)
    read = load_acting_policy(export_policy(folder, written, spec, settings))
    random = np.random.default_rng(1)
    recalls: list[Recall | None] = [None, None]
    for _ in range(2):
        observations = tuple(random.normal(size=(20, *o.shape)).astype(o.dtype) for o in spec.observations)
        decisions = [
            acting.act(observations, None, np.random.default_rng(2), recall=recall)
            for acting, recall in zip((original, read), recalls, strict=True)
        ]
        assert decisions[0].columns.keys() == decisions[1].columns.keys()
        for name, column in decisions[0].columns.items():
            np.testing.assert_array_equal(column, decisions[1].columns[name])
        recalls = [decision.recall for decision in decisions]
    return read


def test_a_squashed_policy_is_read_as_one(tmp_path):
    assert_acts_alike(tmp_path, SPEC, settings_for("sac"))
    assert read_export(tmp_path / "Ball" / "Ball-100.pt").design.squashed


def test_a_policy_with_memory_and_images_is_read_as_one(tmp_path):
    spec = BehaviorSpec("Ball", (ObservationSpec("court", (5,)), ObservationSpec("camera", (1, 20, 20))), SPEC.actions)
    memory = {"memory_size": 4, "sequence_length": 2}
    read = assert_acts_alike(tmp_path, spec, settings_for("sac", memory=memory, normalize=True))
    assert read.memory_size == 4


def test_a_users_network_is_found_next_to_the_yaml(tmp_path):
    settings = settings_for(network="no_such_module_here:Net")
    written = PolicyUpdate("Ball", 2, np.zeros(1, np.float32), (("body.weight", (1,)),), 100)
    path = export_policy(tmp_path, written, SPEC, settings)
    assert read_export(path, Path("some/folder")).design.folder == Path("some/folder")
    with pytest.raises(StageError, match="no_such_module_here"):
        load_acting_policy(path, tmp_path)


@pytest.mark.parametrize("found", [2, None])
def test_another_version_of_the_format_is_refused_by_name(tmp_path, found):
    path = export_policy(tmp_path, policy(), SPEC, SETTINGS)
    torch.save({**torch.load(path, weights_only=True), "format": found}, path)
    with pytest.raises(ValueError, match=f"^{path} has format {found}, but this version of Headrace reads format 1$"):
        read_export(path)


def test_the_learner_state_of_an_export_round_trips(tmp_path):
    learner: dict[str, Any] = {
        "critic": {"weight": np.arange(6.0).reshape(2, 3), "count": np.int64(3) * np.ones(2, np.int64)},
        "step": 7,
    }
    read = read_export(export_policy(tmp_path, policy(), SPEC, SETTINGS, learner=learner)).learner
    assert read["step"] == 7
    for name, array in learner["critic"].items():
        assert read["critic"][name].dtype == array.dtype
        np.testing.assert_array_equal(read["critic"][name], array)


def test_the_newest_by_step_are_kept_and_labelled_ones_are_not_counted(tmp_path):
    for step in (50, 900, 1000):
        export_policy(tmp_path, policy(step), SPEC, SETTINGS)
    export_policy(tmp_path, policy(2000), SPEC, SETTINGS, label="best")
    assert names(tmp_path) == ["Ball-1000.pt", "Ball-900.pt", "Ball-best.pt"]
    assert [path.stem for path in exports_by_step(tmp_path / "Ball", "Ball")] == ["Ball-900", "Ball-1000"]
    assert read_export(tmp_path / "Ball" / NEWEST).update.step == 1000


def test_foreign_files_are_not_counted_or_removed(tmp_path):
    (tmp_path / "Ball").mkdir()
    others = ["Ball-2-3.pt", "Ball-old.pt", "Ballast-7.pt", "Ball-5.onnx", "notes.txt"]
    for name in others:
        (tmp_path / "Ball" / name).touch()
    for step in (50, 900, 1000):
        export_policy(tmp_path, policy(step), SPEC, SETTINGS)
    assert names(tmp_path) == sorted([*others, "Ball-900.pt", "Ball-1000.pt"])


@pytest.mark.lengthy
@pytest.mark.parametrize("stop", [False, True])
def test_exports_are_whole_after_a_failed_write(tmp_path, stop):
    recorder = Recorder()
    for step in (100, 200):
        export_policy(tmp_path / "probe", policy(step), SPEC, SETTINGS, files=recorder)
    for at in range(len(recorder.done)):
        folder, files = tmp_path / str(at), Faulty(at, stop)
        for step in (100, 200):
            with contextlib.suppress(OSError, Stopped):
                export_policy(folder, policy(step, seed=step), SPEC, SETTINGS, files=files)
        for path in exports_by_step(folder / "Ball", "Ball"):
            read = read_export(path).update
            np.testing.assert_array_equal(read.weights, policy(read.step, seed=read.step).weights)
        if not stop:  # an export lost is an export lost, the others are there
            assert {read_export(path).update.step for path in exports_by_step(folder / "Ball", "Ball")} & {100, 200}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"nothing of the kind", "it is damaged, or not a PyTorch file"),
        (b"PK\x03\x04 half a zip", "it is damaged, or not a PyTorch file"),
    ],
)
def test_a_file_that_is_not_an_export_is_named_with_the_reason(tmp_path, content, why):
    path = tmp_path / "Ball-1.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"Ball-1\.pt is not an exported policy: {why}$"):
        read_export(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([1, 2], "it holds a list, not a dict"),
        ({"weights": {}}, "it has no 'spec'"),
        ({"weights": 1}, "its content has an unexpected structure .*int"),
    ],
)
def test_a_file_of_torch_that_holds_something_else_is_named_with_the_reason(tmp_path, content, why):
    path = tmp_path / "Ball-1.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"Ball-1\.pt is not an exported policy: {why}"):
        read_export(path)


def test_a_file_that_would_run_code_when_read_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("caught",))

    path = tmp_path / "Ball-1.pt"
    torch.save({"weights": {}, "spec": Trap()}, path)
    with pytest.raises(ValueError, match="is not an exported policy") as caught:
        read_export(path)
    # Which of torch's versions says `builtins.print`, and which `print`, is none of our business.
    assert "it holds objects other than tensors and plain values (" in str(caught.value)
    assert "print); loading them" in str(caught.value)


@pytest.mark.parametrize("name", ["Team/Ball", "Ball [2]", "a:b"])
def test_a_behaviour_whose_name_no_file_can_have_keeps_its_policies_too(tmp_path, name):
    spec = replace(SPEC, behavior_id=f"{name}?team=0")
    for step in (100, 200, 300):
        path = export_policy(tmp_path, policy(step, spec=spec), spec, SETTINGS)
    assert path.parent == behavior_folder(tmp_path, name)
    assert [step_in_name(kept) for kept in exports_by_step(path.parent, name)] == [200, 300]
    assert read_export(path).update.behavior_id == name


def exported_with(path, **changes):
    """A good export with other content."""
    content = torch.load(export_policy(path.parent, policy(), SPEC, SETTINGS), weights_only=True)
    torch.save({**content, **changes}, path)
    return path


@pytest.mark.parametrize("where", ["weights", "learner"])
def test_tensors_that_are_views_of_a_few_bytes_are_not_spread_out(tmp_path, where):
    """They would have 40 GB."""
    spread = {"w": torch.zeros(1).expand(10_000_000_000)}
    path = exported_with(tmp_path / "bomb.pt", **{where: spread})
    assert path.stat().st_size < 50_000
    with pytest.raises(ValueError, match=r"bomb.pt is not an exported policy: its tensors declare 40,0"):
        read_export(path)


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_of_a_weight_is_named_as_damage(tmp_path):
    path = export_policy(tmp_path, policy(), SPEC, SETTINGS)
    whole, first = path.read_bytes(), policy().weights[:4].tobytes()
    path.write_bytes(flipped(whole, 8 * (whole.index(first) + 3) + 6))
    with pytest.raises(ValueError, match=r"Ball-100\.pt is damaged: the checksum \(CRC-32\) of its entry .*data/0"):
        read_export(path)


def test_a_policy_with_a_flipped_bit_is_the_one_that_was_written_or_is_refused(tmp_path):
    written = policy()
    path = export_policy(tmp_path, written, SPEC, SETTINGS)
    whole, refused = path.read_bytes(), 0
    for bit in np.random.default_rng(0).integers(0, 8 * len(whole), 60).tolist():
        path.write_bytes(flipped(whole, bit))
        try:
            read = read_export(path)
        except ValueError:
            refused += 1
        else:
            assert (read.design.spec, read.update.step) == (SPEC, written.step), bit
            np.testing.assert_array_equal(read.update.weights, written.weights, str(bit))
    assert refused > 5


@pytest.mark.lengthy
def test_an_archive_that_unpacks_to_more_than_the_file_is_refused(tmp_path):
    packed = tmp_path / "bomb.pt"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(50_000_000))
    assert packed.stat().st_size < 500_000
    assert is_export(packed), "a damaged one counts as such"
    with pytest.raises(ValueError, match="its content declares 50,000,000 bytes"):
        read_export(packed)
