"""`.onnx` files of runs: written beside the `.pt`, gone with it, and never a reason for anything else to fail."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import onnx
import pytest
from fakes_files import Held
from onnx_samples import design_for, update_for

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import OnnxExporter, copy_final_model, export_policy, exports_by_step, reexport
from headrace.pipeline.policies.inference import make_inference_policy, policy_file
from headrace.pipeline.policies.model_files import read_policy_update
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.onnx import model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

DESIGN = design_for()
SETTINGS = BehaviorSettings.model_validate(
    {"keep_checkpoints": 2, "network_settings": {"hidden_units": 16, "num_layers": 2}}
)
ROOT = Path(__file__).parents[3]


def written(run_folder, step=700, exporter=None, label=None):
    """A policy of that step as `.pt` and `.onnx`; what the exporter said."""
    update = update_for(DESIGN, step=step)
    path = export_policy(run_folder, update, DESIGN.spec, SETTINGS, label)
    return (exporter or OnnxExporter()).write(path, DESIGN, update)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_complete_model_is_written_next_to_the_policy(tmp_path):
    path = written(tmp_path)
    assert path == tmp_path / "Test" / "Test-700.onnx"
    onnx.checker.check_model(onnx.load(path), full_check=True)


def test_models_are_removed_with_the_policies_beyond_keep_checkpoints(tmp_path):
    for step in (100, 200, 1000):
        written(tmp_path, step)
    written(tmp_path, label="best")
    for suffix in (".pt", ".onnx"):
        assert [path.stem for path in exports_by_step(tmp_path / "Test", "Test", suffix)] == ["Test-200", "Test-1000"]
        assert (tmp_path / "Test" / f"Test-best{suffix}").is_file()


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
def test_a_disk_that_refuses_costs_a_warning_and_no_half_written_model(tmp_path, caplog, operation):
    before = written(tmp_path).read_bytes()
    assert written(tmp_path, exporter=OnnxExporter(files=Held(operation, tries=99))) is None
    assert "the policy itself is in the .pt file" in warnings_of(caplog)[0]
    assert not (tmp_path / "Test" / "Test-700.onnx").exists(), f"{len(before)} bytes of another policy"
    assert (tmp_path / "Test" / "Test-700.pt").is_file()


def test_a_reason_is_reported_once(tmp_path, caplog):
    exporter = OnnxExporter()
    for step in (100, 200):
        assert exporter.write(tmp_path / f"Test-{step}.pt", DESIGN, update_for(design_for(hidden_units=8))) is None
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("observed", [(), (ObservationSpec("camera", (3, 20, 20), "uint8"),)])
@pytest.mark.parametrize("actions", [ActionSpec(2), ActionSpec(0, (3, 2), masked=True)])
@pytest.mark.parametrize("memory", [None, {"memory_size": 6, "sequence_length": 4}])
def test_sound_models_of_every_kind_are_not_suspected(observed, actions, memory):
    from headrace.stages.policy.onnx.model import onnx_model

    design = design_for(*observed, actions=actions, memory=memory)
    update = update_for(design)
    assert model.difference(design, update, onnx_model(design, update)) is None
    assert model.difference(design, update_for(design, seed=9), onnx_model(design, update)) is not None


def test_models_are_made_without_onnxruntime(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert written(tmp_path).is_file()
    assert warnings_of(caplog) == []


def test_the_last_model_is_copied_to_the_runs_folder(tmp_path, caplog):
    source = written(tmp_path)
    entry = ExportEntry(700, str(source), 1.5, 2.5, (str(source.with_suffix(".pt")),))
    with caplog.at_level(logging.INFO):
        final = copy_final_model(tmp_path, "Test", entry)
    target = tmp_path / "Test.onnx"
    assert target.read_bytes() == source.read_bytes()
    assert (final.file_path, final.steps, final.auxiliary_file_paths) == (str(target), 700, entry.auxiliary_file_paths)
    assert caplog.messages == [f"Copied {source} to {target}."]


def test_without_a_model_the_last_checkpoint_is_the_policy(tmp_path):
    entry = ExportEntry(700, str(tmp_path / "Test" / "Test-700.pt"), None, 0.0)
    assert copy_final_model(tmp_path, "Test", entry) == entry
    lost = ExportEntry(700, str(tmp_path / "Test" / "Test-700.onnx"), None, 0.0)
    with pytest.raises(FileNotFoundError):
        copy_final_model(tmp_path, "Test", lost)


# Making them anew. ---------------------------------------------------------------------------------------------------


def test_models_can_be_made_of_a_runs_policies_later(tmp_path, capsys):
    models = [written(tmp_path, step).read_bytes() for step in (200, 1000)]
    written(tmp_path, label="best")
    for path in (tmp_path / "Test").glob("*.onnx"):
        path.unlink()
    assert main(["--export-onnx", str(tmp_path)]) == 0
    assert [(tmp_path / "Test" / f"Test-{step}.onnx").read_bytes() for step in (200, 1000)] == models
    assert (tmp_path / "Test" / "Test-best.onnx").is_file()
    assert (tmp_path / "Test.onnx").read_bytes() == models[-1]


def test_an_unreadable_policy_is_reported_and_the_others_are_exported_again(tmp_path, caplog):
    written(tmp_path, 200)
    (tmp_path / "Test" / "Test-100.pt").write_bytes(b"not a policy")
    assert not reexport(tmp_path)
    assert "Test-100.pt is not an exported policy" in warnings_of(caplog)[0]
    assert (tmp_path / "Test.onnx").is_file()


def test_without_torch_the_models_stay_and_the_extra_is_named(tmp_path, capsys, monkeypatch):
    kept = written(tmp_path).read_bytes()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["--export-onnx", str(tmp_path)]) == 2
    assert 'pip install "headrace[train]"' in capsys.readouterr().err
    assert [path.read_bytes() for path in (tmp_path / "Test").glob("*.onnx")] == [kept]


def test_a_folder_that_is_not_a_runs_is_refused(tmp_path, capsys):
    assert main(["--export-onnx", str(tmp_path)]) == 2
    assert "holds no trained policy" in capsys.readouterr().err
    with pytest.raises(RunError):
        reexport(tmp_path / "nowhere")


@pytest.mark.lengthy
def test_custom_networks_are_found_next_to_the_configuration(tmp_path):
    from headrace.stages.policy.design import design_of

    spec = BehaviorSpec("CartPole", (ObservationSpec("vector", (4,)),), ActionSpec(0, (2,)))
    example = ROOT / "examples" / "custom_network"
    settings = BehaviorSettings.model_validate({"network_settings": {"network": "my_network:ResidualNetwork"}})
    design = design_of(spec, settings, example)
    path = export_policy(tmp_path, update_for(design), spec, settings)
    assert main([str(example / "config.yaml"), "--export-onnx", str(tmp_path)]) == 0
    assert path.with_suffix(".onnx").is_file()


# What plays. ---------------------------------------------------------------------------------------------------------


def config(**settings):
    network = {"hidden_units": 16, "num_layers": 2}
    return RunConfig.from_plain(
        {
            "behaviors": {"Test": {"trainer_type": "ppo", "network_settings": network, **settings}},
            "checkpoint_settings": {"inference": True},
        }
    )


def test_the_newest_policy_of_either_kind_plays(tmp_path):
    written(tmp_path, 100)
    folder = tmp_path / "Test"
    assert policy_file(config(), tmp_path, "Test") == folder / "Test-100.pt"
    assert isinstance(make_inference_policy(config(), tmp_path, DESIGN.spec), NumpyPolicy)
    shutil.copy(folder / "Test-100.onnx", folder / "Test-900.onnx")
    assert policy_file(config(), tmp_path, "Test") == folder / "Test-900.onnx"
    assert isinstance(make_inference_policy(config(), tmp_path, DESIGN.spec), OnnxPolicy)
    policy = read_policy_update(folder / "Test-900.onnx", "Test")
    assert (policy.step, policy.version, policy.layout) == (900, 0, ())


def test_a_model_that_init_path_names_plays_in_place_of_all_others(tmp_path):
    given = written(tmp_path / "elsewhere")
    written(tmp_path, 100)
    assert policy_file(config(init_path=str(given)), tmp_path, "Test") == given
    with pytest.raises(RunError, match="there is no file"):
        policy_file(config(init_path=str(tmp_path / "absent.onnx")), tmp_path, "Test")


def test_an_init_path_for_training_is_not_what_plays(tmp_path):
    given = written(tmp_path / "elsewhere").with_suffix(".pt")
    written(tmp_path, 100)
    assert policy_file(config(init_path=str(given)), tmp_path, "Test") == tmp_path / "Test" / "Test-100.pt"


def test_the_final_model_plays_if_the_run_has_no_other_policy(tmp_path):
    model = written(tmp_path, 100)
    shutil.move(model, tmp_path / "Test.onnx")
    shutil.rmtree(tmp_path / "Test")
    assert policy_file(config(), tmp_path, "Test") == tmp_path / "Test.onnx"
    (tmp_path / "Test.onnx").unlink()
    with pytest.raises(RunError, match="holds no trained policy"):
        policy_file(config(), tmp_path, "Test")


def test_a_run_folder_whose_models_are_of_barracudas_format_is_refused_with_the_reason(tmp_path):
    (tmp_path / "Test.nn").write_bytes(b"of ML-Agents 0.20")
    with pytest.raises(
        RunError, match=r"Test\.nn is in the format of Barracuda, which only Unity's packages 1\.0 to 2"
    ):
        policy_file(config(), tmp_path, "Test")
