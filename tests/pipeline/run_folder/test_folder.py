"""Specifications of a run's folder: who may have it, what is in it, and its status file."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fakes_files import Faulty, Held
from run_configs import INLINE, cartpole
from runs import run_here

from headrace.paths import ROOT
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.run_folder.checkpoint import write_manifest, write_part
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.lock import GUARD, LOCK, SOFT
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.pipeline.run_folder.training_status import BehaviorStatus, ExportEntry, TrainingStatus
from headrace.queues.disks import Disks
from headrace.queues.files import write_atomic

pytestmark = pytest.mark.windows_too


def make_run(results: Path, run_id: str = "ppo", configuration: str = "a: 1\n") -> Path:
    with RunFolder.create(results, run_id, configuration=configuration) as folder:
        folder.behavior("Ball")
        return folder.path


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_new_run_has_its_layout_and_its_configuration_from_the_start(tmp_path):
    with RunFolder.create(tmp_path / "results", "ppo", configuration="seed: 3\n") as folder:
        assert folder.path == tmp_path / "results" / "ppo"
        assert folder.run_id == "ppo"
        assert names(folder.path) == {"configuration.yaml", "run_logs", "checkpoints", "streams", LOCK, GUARD}
        assert (folder.path / "configuration.yaml").read_text() == "seed: 3\n"
        assert folder.behavior("Tennis").is_dir()


def test_an_existing_run_is_not_overwritten_without_force_or_resume(tmp_path):
    path = make_run(tmp_path)
    with pytest.raises(RunFolderError, match="--resume to resume it, --force to archive it"):
        RunFolder.create(tmp_path, "ppo", configuration="other")
    assert (path / "configuration.yaml").read_text() == "a: 1\n"


def test_a_run_that_failed_before_it_met_an_agent_is_simply_started_again(tmp_path):
    RunFolder.create(tmp_path, "ppo", configuration="a: 1\n").close()
    (tmp_path / "ppo" / "run_logs" / "Player-0.log").write_text("Exec format error")
    with RunFolder.create(tmp_path, "ppo", configuration="b: 2\n") as folder:
        assert (folder.path / "configuration.yaml").read_text() == "b: 2\n"
    assert names(tmp_path) == {"ppo"}


@pytest.mark.parametrize("left", ["checkpoints/000001", "streams/a.stream", "Ball.onnx", "notes.txt"])
def test_a_folder_with_any_file_left_by_a_run_is_not_overwritten(tmp_path, left):
    RunFolder.create(tmp_path, "ppo").close()
    (tmp_path / "ppo" / left).write_bytes(b"1")
    with pytest.raises(RunFolderError, match="exists"):
        RunFolder.create(tmp_path, "ppo")


def test_resume_reuses_the_folder_and_writes_the_new_configuration(tmp_path):
    path = make_run(tmp_path)
    (path / "checkpoints" / "kept").write_bytes(b"1")
    with RunFolder.create(tmp_path, "ppo", resume=True, configuration="b: 2\n") as folder:
        assert (folder.checkpoints / "kept").read_bytes() == b"1"
        assert (folder.path / "configuration.yaml").read_text() == "b: 2\n"


def test_resume_clears_away_what_an_interrupted_write_left(tmp_path):
    left = make_run(tmp_path) / "run_logs" / ".training_status.json.123-4.partial"
    left.write_bytes(b"half")
    RunFolder.create(tmp_path, "ppo", resume=True).close()
    assert not left.exists()


def test_force_puts_the_old_run_aside_each_time_under_a_new_name(tmp_path):
    for number in range(3):
        with RunFolder.create(tmp_path, "ppo", force=True, configuration=f"run: {number}\n") as folder:
            folder.behavior("Ball")
    assert names(tmp_path) == {"ppo", "ppo-archived-1", "ppo-archived-2"}
    assert (tmp_path / "ppo-archived-1" / "configuration.yaml").read_text() == "run: 0\n"
    assert (tmp_path / "ppo-archived-2" / "configuration.yaml").read_text() == "run: 1\n"
    assert LOCK not in names(tmp_path / "ppo-archived-2")


def test_force_reports_that_a_program_has_a_file_open(tmp_path):
    make_run(tmp_path)
    with pytest.raises(PermissionError, match="another program has kept the file open"):
        RunFolder.create(tmp_path, "ppo", force=True, files=Held("replace", tries=99))
    RunFolder.create(tmp_path, "ppo", resume=True).close()  # the lock was let go


def test_resume_of_an_unknown_run_names_those_that_exist(tmp_path):
    make_run(tmp_path, "tennis-1")
    make_run(tmp_path, "walker")
    (tmp_path / "not a run").mkdir()
    with pytest.raises(RunFolderError) as failure:
        RunFolder.create(tmp_path, "tennis1", resume=True)
    message = str(failure.value)
    assert "there is no run 'tennis1' in " in message
    assert "did you mean 'tennis-1'?" in message
    assert "walker" in message
    assert "not a run" not in message


@pytest.mark.parametrize("run_id", ["", "..", " ", "a/b", "a\\b", "nul\0"])
def test_a_run_id_that_is_not_a_folder_name_is_refused(tmp_path, run_id):
    with pytest.raises(RunFolderError, match="can't name a folder"):
        RunFolder.create(tmp_path, run_id, force=True)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["run_logs", "Checkpoints", "streams", "Pipeline"])
def test_a_behavior_cannot_have_a_folder_of_the_run(tmp_path, name):
    with RunFolder.create(tmp_path, "ppo") as folder, pytest.raises(RunFolderError, match="different name"):
        folder.behavior(name)


@pytest.mark.parametrize(
    ("category", "folder"), [("Tennis", "Tennis"), ("My Behavior", "My Behavior"), ("a/b", "a%2Fb")]
)
def test_folders_of_behaviors_have_names_that_every_platform_takes(tmp_path, category, folder):
    assert behavior_folder(tmp_path, category) == tmp_path / folder
    with RunFolder.create(tmp_path, "ppo") as run:
        assert run.behavior(category).name == folder


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("configuration.yaml", "'configuration.yaml' is the name of a file, folder or entry that every run has"),
        ("Checkpoints", "entry that every run has"),
        ("x" * 210, "its files would have names of up to 2.. bytes, but at most 255 are possible"),
        ("a\ud800", "unpaired surrogate"),
    ],
)
def test_a_name_by_which_nothing_could_be_kept_is_refused(tmp_path, name, why):
    with RunFolder.create(tmp_path, "ppo") as run:
        with pytest.raises(
            RunFolderError, match=rf"^behavior .*: .*{why}.*; choose a different name for the behavior$"
        ):
            run.behavior(name)


@pytest.mark.skipif(sys.platform == "win32", reason="whole paths are limited there")
def test_the_longest_name_has_a_checkpoint_and_a_policy(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as run:
        name = max((("x" * length) for length in range(190, 215) if fits(run, "x" * length)), key=len)
        write_part(run.checkpoints, 1, f"trainer@learner-{name}", {})
        write_atomic(run.behavior(name) / f"{name}-1000000000.onnx", b"")


def fits(run, name):
    try:
        return run.behavior(name).is_dir()
    except RunFolderError:
        return False


def test_behaviors_that_some_disks_do_not_distinguish_are_refused(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as run:
        run.behavior("Ball")
        with pytest.raises(RunFolderError, match="behaviors 'Ball' and 'ball' would share the folder"):
            run.behavior("ball")


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"force": True}])
def test_a_running_run_is_left_alone(tmp_path, options):
    with (
        RunFolder.create(tmp_path, "ppo") as folder,
        pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"),
    ):
        RunFolder.create(tmp_path, "ppo", **options)
    assert folder.path.is_dir()


HOLD = """
import sys
from headrace.pipeline.run_folder.folder import RunFolder
folder = RunFolder.create(sys.argv[1], "ppo", configuration="a: 1")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.lengthy
def test_the_lock_of_a_killed_process_is_taken_over_that_of_a_living_one_is_not(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"ready"
        with pytest.raises(RunFolderError, match=f"in use by process {child.pid}"):
            RunFolder.create(tmp_path, "ppo", resume=True)
        child.kill()
        child.wait()
    with RunFolder.create(tmp_path, "ppo", resume=True) as folder:
        assert json.loads((folder.path / LOCK).read_bytes())["pid"] == os.getpid()
    assert LOCK not in names(folder.path)


@pytest.mark.parametrize(
    ("content", "holder"),
    [('{"pid": 7, "host": "elsewhere"}', "process 7 on the machine 'elsewhere'"), ("", "another process")],
)
def test_a_process_that_runs_the_run_is_named_as_well_as_its_file_does(tmp_path, content, holder):
    with RunFolder.create(tmp_path, "ppo") as folder:
        (folder.path / LOCK).write_text(content)
        with pytest.raises(RunFolderError, match=f"in use by {holder}; wait for it"):
            RunFolder.create(tmp_path, "ppo", force=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other locks")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_of_the_file_system_the_file_names_the_writer_and_a_warning_says_so(
    tmp_path, monkeypatch, caplog, code
):
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with RunFolder.create(tmp_path, "ppo") as folder:
        assert f"supports no locks ({os.strerror(code)}): using {SOFT}" in caplog.text
        with pytest.raises(
            RunFolderError, match=f"in use by process {os.getpid()}; .* if that process was killed, delete"
        ):
            RunFolder.create(tmp_path, "ppo", resume=True)
        monkeypatch.undo()  # as on another machine, where the same file system has locks
        with pytest.raises(RunFolderError, match="in use by process .* if that process was killed, delete"):
            RunFolder.create(tmp_path, "ppo", resume=True)
    assert SOFT not in names(folder.path)
    RunFolder.create(tmp_path, "ppo", resume=True).close()


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"inference": True}])
def test_a_results_folder_that_cannot_be_made_is_named_with_what_is_in_the_way(tmp_path, flags):
    (tmp_path / "file").touch()
    results = tmp_path / "file" / "results"
    in_way = (
        rf"run can't be written: {re.escape(str(tmp_path / 'file'))} is not a folder\. .* choose another --results-dir$"
    )
    on_windows = sys.platform == "win32" and "resume" in flags  # which sees no folder there, and not why
    nothing = f"there is no run 'run' in {re.escape(str(results))}; the folder holds no runs"
    with pytest.raises(RunFolderError, match=nothing if "inference" in flags or on_windows else in_way):
        run_here(cartpole(**INLINE), results, "run", **flags)


def create_with_each_operation_failing(folder: Path, before):
    """Create a run with one operation after the other failing; yield each failure and its results folder."""
    at = 0
    while True:
        results = folder / str(at)
        before(results)
        files = Faulty(at, stop=False)
        try:
            RunFolder.create(results, "ppo", force=True, configuration="b: 2\n", files=files).close()
        except OSError:
            yield files.done[at], results
            at += 1
        else:
            return


@pytest.mark.lengthy
def test_a_run_can_start_after_any_failed_operation(tmp_path):
    failures = []
    for failed, results in create_with_each_operation_failing(tmp_path, before=lambda results: None):
        RunFolder.create(results, "ppo", force=True).close()
        failures.append(failed)
    assert set(failures) >= {"mkdir", "open", "write", "fsync", "close", "replace", "listdir"}


@pytest.mark.lengthy
def test_an_archived_run_is_kept_after_any_failed_operation(tmp_path):
    failures = 0
    for _, results in create_with_each_operation_failing(tmp_path, before=make_run):
        kept = [path.read_text() for path in results.glob("*/configuration.yaml")]
        assert "a: 1\n" in kept
        failures += 1
    assert failures > 10


STATUS = TrainingStatus(
    behaviors={
        "Tennis": BehaviorStatus(
            checkpoints=(
                ExportEntry(500, "results/ppo/Tennis/Tennis-500.onnx", None, 1700000000.5, ("Tennis-500.pt",)),
                ExportEntry(1000, "results/ppo/Tennis/Tennis-1000.onnx", 0.25, 1700000001.5),
            ),
            final_checkpoint=ExportEntry(1000, "results/ppo/Tennis.onnx", 0.25, 1700000002.5),
            elo=1234.5,
        ),
        "Wall": BehaviorStatus(),
    },
    lessons={"wall_height": 2, "Tennis": 1},
)


def test_the_training_status_has_ml_agents_form(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.write_training_status(STATUS)
        content = json.loads(folder.training_status.read_bytes())
    metadata = content.pop("metadata")
    assert metadata.keys() == {"stats_format_version", "mlagents_version", "torch_version", "checksum"}
    assert content == {
        "Tennis": {
            "checkpoints": [
                {
                    "steps": 500,
                    "file_path": "results/ppo/Tennis/Tennis-500.onnx",
                    "reward": None,
                    "creation_time": 1700000000.5,
                    "auxillary_file_paths": ["Tennis-500.pt"],
                },
                {
                    "steps": 1000,
                    "file_path": "results/ppo/Tennis/Tennis-1000.onnx",
                    "reward": 0.25,
                    "creation_time": 1700000001.5,
                    "auxillary_file_paths": [],
                },
            ],
            "final_checkpoint": {
                "steps": 1000,
                "file_path": "results/ppo/Tennis.onnx",
                "reward": 0.25,
                "creation_time": 1700000002.5,
                "auxillary_file_paths": [],
            },
            "elo": 1234.5,
            "lesson_num": 1,
        },
        "Wall": {"checkpoints": []},
        "wall_height": {"lesson_num": 2},
    }


def test_a_training_status_is_read_as_it_was_written(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.write_training_status(STATUS)
        assert folder.read_training_status() == STATUS


@pytest.mark.parametrize("content", ["", "[1]", '{"Tennis": {"checkpoints": [{}]}}'])
def test_a_broken_status_file_is_named(tmp_path, content):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.training_status.write_text(content)
        with pytest.raises(RunFolderError, match=r"training_status\.json can't be read as a training status"):
            folder.read_training_status()


def altered(status, key, value):
    """The text of a status file with another value, whose checksum is left out as in files of ML-Agents."""
    content = status.as_dict()
    del content["metadata"]["checksum"]
    *path, last = key.split(".")
    entry = content
    for name in path:
        entry = entry[int(name) if name.isdecimal() else name]
    entry[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("Tennis.checkpoints.1.creation_time", float("inf"), r"Tennis\.checkpoints\.1\.creation_time is inf"),
        ("Tennis.checkpoints.0.steps", -1, r"Tennis\.checkpoints\.0\.steps is -1"),
        ("wall_height.lesson_num", 1.5, r"wall_height\.lesson_num is 1\.5"),
    ],
)
def test_a_value_of_the_status_file_that_can_not_be_is_named_with_its_key(tmp_path, key, value, named):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.training_status.write_text(altered(STATUS, key, value))
        with pytest.raises(
            RunFolderError, match=rf"training_status\.json can't be read as a training status .*{named}"
        ):
            folder.read_training_status()


def test_a_status_file_that_is_not_what_was_written_is_named(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.write_training_status(STATUS)
        folder.training_status.write_bytes(folder.training_status.read_bytes().replace(b"1234.5", b"1334.5"))
        with pytest.raises(
            RunFolderError, match=r"training_status\.json .*metadata\.checksum is .*damaged or was edited"
        ):
            folder.read_training_status()


def test_a_status_file_without_a_checksum_or_with_a_nan_reward_is_read(tmp_path):
    with RunFolder.create(tmp_path, "ppo") as folder:
        folder.training_status.write_text(altered(STATUS, "Tennis.checkpoints.1.reward", float("nan")))
        assert folder.read_training_status().behaviors["Tennis"].checkpoints[1].reward is None


@pytest.mark.windows
def test_the_longest_path_that_is_allowed_holds_a_checkpoint(tmp_path):
    results = tmp_path / ("a" * (259 - 110 - len(str(tmp_path)) - 3))
    with RunFolder.create(results, "r") as folder:
        name = f"trainer@learner-{'B' * 30}"
        part = write_part(folder.checkpoints, 999_999, name, {"a": 1})
        write_manifest(folder.checkpoints, 999_999, [part], {}, {})
        folder.behavior("B" * 30)
    with pytest.raises(RunFolderError, match="LongPathsEnabled"):
        RunFolder.create(results, "rr")


@pytest.mark.parametrize(
    "file", ["results\\ppo\\Ball\\Ball-5.onnx", "C:\\runs\\ppo\\Ball\\Ball-5.onnx", "ppo/Ball/Ball-5.onnx"]
)
def test_an_export_is_found_by_a_path_of_any_operating_system(tmp_path, file):
    entry = ExportEntry(5, file, None, 0.0, (file,)).within(tmp_path)
    assert Path(entry.file_path) == tmp_path / "Ball" / "Ball-5.onnx" == Path(*entry.auxiliary_file_paths)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_does_not_answer_is_named_at_the_start(tmp_path, monkeypatch, resume):
    RunFolder.create(tmp_path, "ppo", configuration="a: 1\n").close()
    answers, stat, told = threading.Event(), os.stat, []

    def hung_stat(path, *arguments, **named):
        assert "ppo" not in str(path) or answers.wait(20)
        return stat(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", hung_stat)
    with Disks(0.05, told.append, checked_s=0.01).used(), pytest.raises(OSError, match=r"has not answered .*: .*ppo"):
        RunFolder.create(tmp_path, "ppo", resume=resume)
    answers.set()
    assert "ppo has not been read or written" in told[0]
