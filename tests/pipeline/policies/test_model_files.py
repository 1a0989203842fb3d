"""Specifications of model references: what they name in the files of runs, and what is read there without a run."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from ml_agents_samples import SAMPLES
from older_models import OlderModel
from onnx_samples import design_for, exported, live_policy, masks_for, seen_by, update_for

from headrace.config import BehaviorSettings
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import export_policy
from headrace.pipeline.policies.model_files import ModelFile, find_model, find_models, read_model
from headrace.queues.specs import ActionSpec, ObservationSpec

SETTINGS = BehaviorSettings.model_validate({"network_settings": {"hidden_units": 16, "num_layers": 2}})
MASKED = ActionSpec(0, (3, 2), masked=True)


def written(run_folder, behavior="Test", step=700, label=None):
    """A policy of that step in a run's folder."""
    design = design_for()
    spec = replace(design.spec, behavior_id=behavior)
    return export_policy(run_folder, update_for(design, step=step), spec, SETTINGS, label)


def paths(reference):
    return [str(file.path) for file in find_models(str(reference))]


def test_a_runs_folder_names_the_newest_policy_of_each_behaviour(tmp_path):
    for behavior, step in (("Ball", 500), ("Ball", 1000), ("Wall", 700)):
        written(tmp_path, behavior, step)
    assert [(file.behavior, file.path.name) for file in find_models(str(tmp_path))] == [
        ("Ball", "Ball-1000.pt"),
        ("Wall", "Wall-700.pt"),
    ]


def test_the_folder_of_a_behaviour_names_its_policy(tmp_path, monkeypatch):
    newest = written(tmp_path)
    assert paths(tmp_path / "Test") == [str(newest)]
    monkeypatch.chdir(tmp_path / "Test")
    assert paths(".") == [str(newest)]


def test_a_step_and_the_best_and_the_last_one_can_be_chosen(tmp_path):
    first, last, best = written(tmp_path, step=500), written(tmp_path, step=1000), written(tmp_path, label="best")
    for choice, path in (("500", first), ("best", best), ("last", last)):
        assert paths(f"{tmp_path}@{choice}") == paths(f"{tmp_path}/Test@{choice}") == [str(path)]


def test_a_file_whose_name_has_an_at_sign_is_itself(tmp_path):
    path = tmp_path / "model@7.pt"
    shutil.copy(written(tmp_path), path)
    assert paths(path) == [str(path)]


def test_a_relative_reference_is_searched_next_to_the_yaml_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("here", "yaml/here"):
        written(tmp_path / place)
    assert find_model("here", folder=tmp_path / "yaml").path == tmp_path / "yaml" / "here" / "Test" / "Test-700.pt"
    shutil.rmtree(tmp_path / "yaml")
    assert find_model("here", folder=tmp_path / "yaml").path.resolve().is_relative_to(tmp_path / "here")


def test_of_several_behaviours_the_one_of_the_name_is_taken(tmp_path):
    wall, _ = written(tmp_path, "Wall"), written(tmp_path, "Ball")
    assert find_model(str(tmp_path), "Wall").path == wall
    with pytest.raises(RunError, match=r"holds 2 behaviours \(Ball, Wall\), and no Walk; did you mean 'Wall'"):
        find_model(str(tmp_path), "Walk")
    with pytest.raises(RunError, match=r"name the folder of one, such as .*/Ball"):
        find_model(str(tmp_path))


def test_the_only_behaviour_is_taken_for_any_name(tmp_path):
    only = written(tmp_path)
    assert find_model(str(tmp_path), "Other").path == only


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("run@400", r"holds no policy Test-400.pt or .onnx: available: @700"),
        ("run@best", r"holds no policy Test-best.pt .*only a run with an evaluation section keeps best"),
        ("run@newest", r"unknown choice '@newest'; expected @best, @last, a step"),
        ("run/Test/Test-700.pt@best", r"@best chooses from a run folder, but .* is a file"),
        ("rum", r"there is no file or folder .*rum; did you mean 'run'"),
        (".", r"holds no policies: expected a .pt or .onnx file, the folder of a run"),
        ("notes.txt", r"notes.txt is not a model: expected a .pt or .onnx file"),
        ("lander.zip", r"lander.zip is not a model: .* this is a Stable-Baselines3 model, whose weights"),
        ("saved.zip", r"saved.zip is not a model: .* extract its folder with headrace.load"),
    ],
)
def test_a_reference_that_matches_no_model_is_refused_with_the_reason(tmp_path, monkeypatch, reference, reason):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("nothing")
    for name, content in (("lander.zip", "policy.pth"), ("saved.zip", "headrace.json")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(content, "")
    with pytest.raises(RunError, match=reason):
        find_models(reference)


@pytest.mark.parametrize("actions", [ActionSpec(2), MASKED, ActionSpec(1, (4,), masked=True)])
@pytest.mark.parametrize("memory", [None, {"memory_size": 6, "sequence_length": 4}])
def test_a_model_of_either_kind_acts_as_the_policy_that_was_exported(tmp_path, actions, memory):
    image = ObservationSpec("camera", (3, 20, 20))
    design = design_for(ObservationSpec("vector", (3,)), image, actions=actions, memory=memory)
    update = update_for(design)
    settings = BehaviorSettings.model_validate({"network_settings": design.settings.model_dump(exclude_unset=True)})
    pt = export_policy(tmp_path, update, design.spec, settings)
    onnx = tmp_path / "Test.onnx"
    onnx.write_bytes(exported(design, update))
    seen, masks = seen_by(design, 5), masks_for(design, 5) if actions.masked else None
    live = live_policy(design, update).act(seen, masks, np.random.default_rng(0), deterministic=True)
    for path in (pt, onnx):
        model = read_model(find_model(str(path)))
        assert (model.spec.name, model.spec.actions) == ("Test", actions)
        assert [o.shape for o in model.spec.observations] == [(3,), (3, 20, 20)]
        made = model.make_policy().act(seen, masks, np.random.default_rng(0), deterministic=True)
        np.testing.assert_allclose(made.actions.continuous, live.actions.continuous, atol=1e-5)
        np.testing.assert_array_equal(made.actions.discrete, live.actions.discrete)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_an_ml_agents_checkpoint_states_its_observations_and_actions(name):
    sample = SAMPLES[name]
    model = read_model(find_model(str(sample.path)))
    assert model.spec.name == "Simple"
    assert [o.size for o in model.spec.observations] == [o.size for o in sample.spec.observations]
    actions = model.spec.actions
    assert (actions.continuous_size, actions.discrete_branches) == (
        sample.actions.continuous_size,
        sample.actions.discrete_branches,
    )
    seen = tuple(np.ones((2, *o.shape), np.float32) for o in model.spec.observations)
    given, wanted = model.make_policy(), read_model(find_model(str(sample.path)), sample.spec).make_policy()
    decisions = [policy.act(seen, None, np.random.default_rng(0)) for policy in (given, wanted)]
    np.testing.assert_array_equal(decisions[0].actions.continuous, decisions[1].actions.continuous)
    np.testing.assert_array_equal(decisions[0].actions.discrete, decisions[1].actions.discrete)


def test_a_version_2_model_is_read_if_it_states_its_actions(tmp_path):
    path = tmp_path / "Old.onnx"
    path.write_bytes(OlderModel({"vector_observation": (7,), "visual_observation_0": (3, 8, 8)}, 2).content())
    spec = read_model(find_model(str(path))).spec
    assert [(o.name, o.shape) for o in spec.observations] == [
        ("vector_observation", (7,)),
        ("visual_observation_0", (3, 8, 8)),
    ]
    assert spec.actions == ActionSpec(2)
    path.write_bytes(OlderModel({"vector_observation": (7,)}, 0, (3, 2)).content())
    with pytest.raises(RunError, match=r"does not say how many choices each discrete branch has"):
        read_model(find_model(str(path)))


def test_a_policy_of_another_environment_is_refused(tmp_path):
    file = ModelFile(written(tmp_path), "Test")
    other = replace(design_for().spec, actions=ActionSpec(3))
    with pytest.raises(RunError, match=r"Test-700.pt: it was trained with different actions: 2 .*now has 3"):
        read_model(file, other)
    assert read_model(file, design_for().spec).update.step == 700


def test_a_policy_plays_with_and_without_action_masks(tmp_path):
    for masked in (True, False):
        design = design_for(actions=ActionSpec(0, (3,), masked=masked))
        path = export_policy(tmp_path, update_for(design, step=700), design.spec, SETTINGS)
        ours = replace(design.spec, actions=ActionSpec(0, (3,), masked=not masked))
        assert read_model(ModelFile(path, "Test"), ours).spec == ours


@pytest.mark.parametrize("name", ["bad.pt", "bad.onnx"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no model")
    with pytest.raises(RunError, match=name):
        read_model(find_model(str(tmp_path / name)))
