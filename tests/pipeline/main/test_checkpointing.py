"""Main's side of saving: a checkpoint is whole with its last part, or it is given up and the one before it stays."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import counting_spec
from fakes_files import Held

from headrace.config import RunConfig
from headrace.pipeline.control import FolderMoved, HostFailed, PartFailed, PartSaved, local_pair
from headrace.pipeline.main.behavior import BehaviorState, TrajectoryPath
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint, write_part
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.stages.ghost import BrainLeague
from headrace.stages.publisher import PolicyPublisher
from headrace.stages.trainer.report import TrainerReport

TRAINER = "trainer@learner-Ball"


class Made:
    """A run's checkpoints, with no stage but trainers that has a part, and what has come of them."""

    def __init__(self, folder: RunFolder, names: Sequence[str] = ("Ball",), **pipeline: Any) -> None:
        blocks = {name: {"checkpoint_interval": 100} for name in names}
        config = RunConfig.from_plain({"behaviors": blocks, "pipeline": pipeline})
        self.plan = RunPlan(config, folder, 0, None)
        stages = StageHost("main", folder.path, 0, None, StatisticsCollector(0), None, lambda message: None)
        behaviors = {}
        for name in names:
            path = TrajectoryPath(self.plan.route(name), config, stages, PolicyPublisher())
            behaviors[name] = BehaviorState(name, counting_spec(name), config.behavior_settings(name), path)
            behaviors[name].start_at(0)
        self.ball = behaviors[names[0]]
        self.leagues: dict[str, Any] = {}
        self.ended: list[str | None] = []
        self.sources: list[Any] = []
        self.hosts: dict[str, Any] = {}
        self.failures: list[HostFailed] = []
        run: Any = SimpleNamespace(
            plan=self.plan,
            behaviors=behaviors,
            stages=stages,
            parts=SimpleNamespace(merged=lambda take: {}, all=()),
            starter=SimpleNamespace(self_play=None, brain_league=BrainLeague(), league_reports=lambda: self.leagues),
            broadcaster=SimpleNamespace(sources=lambda: self.sources),
            reporter=SimpleNamespace(elapsed_s=0.0, drop_writers=lambda: None, mark=lambda *of_a_curve: None),
            running=SimpleNamespace(hosts=self.hosts),
            flow=SimpleNamespace(resume=lambda: None),
        )
        self.checkpointing = Checkpointing(run)
        self.checkpointing.ended = self.ended.append
        self.checkpointing.failed = self.fail

    def fail(self, failure: HostFailed) -> bool:
        """As `Shutdown.fail`."""
        self.failures.append(failure)
        if first := len(self.failures) == 1:
            self.checkpointing.save_now()
        return first

    def part(self, number: int, behavior: str = "Ball") -> PartSaved:
        return write_part(self.plan.folder.checkpoints, number, f"trainer@learner-{behavior}", {"weights": [1.0]})


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with RunFolder.create(tmp_path / "results", "run") as folder:
        yield Made(folder)


def reported(step: int) -> TrainerReport:
    return TrainerReport("Ball", step, 2, False, None, 0, {})


def test_a_checkpoint_is_whole_with_its_last_part_and_the_next_is_due_at_the_next_multiple_of_the_interval(made):
    assert [made.ball.receive_report(reported(step)) for step in (99, 130)] == [False, True]
    made.checkpointing.begin()
    assert made.ball.next_checkpoint == 200
    assert not made.ball.receive_report(reported(199))
    made.checkpointing.receive(made.part(0))
    assert (made.checkpointing.newest, made.checkpointing.busy, made.ended) == (0, False, [None])
    assert made.ball.next_checkpoint == 200
    assert made.plan.folder.read_training_status().behaviors.keys() == {"Ball"}


def test_a_checkpoint_that_becomes_due_during_another_is_not_skipped(made):
    made.ball.receive_report(reported(130))
    made.checkpointing.begin()
    assert made.ball.receive_report(reported(210))
    made.checkpointing.receive(made.part(0))
    assert made.ball.receive_report(reported(220)), "the one of step 200 is still due"


def test_its_steps_are_those_at_which_its_trainers_were_saved_however_far_they_have_come_since(tmp_path):
    with RunFolder.create(tmp_path, "run") as folder:
        made = Made(folder, ("Ball", "Cube"))
        made.ball.receive_report(reported(130))
        made.checkpointing.begin()
        made.checkpointing.receive(made.part(0))
        made.ball.receive_report(reported(180))
        made.checkpointing.receive(made.part(0, "Cube"))
        assert newest_checkpoint(folder.checkpoints).steps == {"Ball": 130, "Cube": 0}


def test_the_list_of_exports_is_written_before_the_manifest_so_that_it_is_never_behind(made):
    made.ball.add_export(ExportEntry(130, "Ball-130.onnx", None, 0.0))
    (made.plan.folder.checkpoints / "000000" / "something").mkdir(parents=True)  # nothing can take its place
    made.checkpointing.begin()
    made.checkpointing.receive(made.part(0))
    assert made.checkpointing.newest == -1
    (listed,) = made.plan.folder.read_training_status().behaviors["Ball"].checkpoints
    assert listed.steps == 130


def test_a_part_that_failed_ends_the_checkpoint_and_the_one_before_it_stays(made, caplog):
    for number in (0, 1):
        made.checkpointing.begin()
        made.checkpointing.receive(made.part(0) if number == 0 else PartFailed(1, TRAINER, "no space left"))
    assert (made.checkpointing.newest, made.ended) == (0, [None, f"{TRAINER}: no space left"])
    assert "Checkpoint 1 could not be written, so the previous one is kept" in caplog.text


def test_a_part_that_is_missing_when_all_hosts_have_ended_is_named(made):
    made.checkpointing.begin()
    made.checkpointing.close()
    assert made.ended == [f"its hosts have ended, and never delivered {TRAINER}"]


def test_the_part_of_a_stage_is_left_out_when_its_host_has_ended_and_that_of_a_trainer_is_not(tmp_path, caplog):
    with RunFolder.create(tmp_path, "run") as folder:
        made = Made(folder, stages=[{"use": "any:Stage", "name": "filter"}])
        made.checkpointing.begin()
        made.checkpointing.receive(made.part(0))
        made.checkpointing.host_ended("actor-0")
        assert (made.checkpointing.newest, made.ended) == (0, [None])
        assert "The checkpoint lacks filter@actor-0" in caplog.text
        made.checkpointing.begin()
        made.checkpointing.host_ended("learner-Ball")
        assert made.ended[1:] == [f"learner-Ball ended before it delivered {TRAINER}"]


def test_time_runs_from_the_last_sign_of_progress(made):
    made.checkpointing.begin()
    limit_s = made.plan.config.pipeline.supervision.learners.end_s
    file = made.plan.folder.checkpoints / "growing.bin"
    for now_s in (1.0, limit_s, 2 * limit_s):
        file.write_bytes(bytes(int(now_s)))
        made.checkpointing.check_time(now_s)
    assert made.checkpointing.busy
    made.checkpointing.check_time(3 * limit_s + 1)
    assert made.ended == ["it took too long"]


@pytest.mark.parametrize("tries", [30, 999])
def test_a_checkpoint_waits_for_a_program_that_has_a_file_of_it_open(tmp_path, caplog, tries):
    files = Held("replace", tries, of="000000")
    with RunFolder.create(tmp_path, "run", files=files) as folder:
        made = Made(folder)
        made.checkpointing.begin()
        made.checkpointing.receive(made.part(0))
        waited = made.checkpointing.busy, list(made.ended)
        for second in range(10):
            made.checkpointing.check_time(float(second))
        made.checkpointing.close()
    assert waited == (True, [])
    assert made.checkpointing.newest == (0 if tries == 30 else -1)
    assert made.ended == ([None] if tries == 30 else ["its hosts have ended, and another program has its files open"])
    assert len([line for line in caplog.messages if "Checkpoint 0 is delayed" in line]) == 1


needs_unix = pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no folder in which a file is open")


@needs_unix
@pytest.mark.parametrize("moment", ["check", "part failed"])
async def test_a_lost_folder_is_noticed_and_a_checkpoint_is_written_next_to_it(made, moment):
    control, theirs = local_pair("learner-Ball")
    made.hosts["learner-Ball"] = SimpleNamespace(control=control)
    made.checkpointing.begin()
    made.part(0)
    lost = made.plan.folder.path
    shutil.rmtree(lost)
    if moment == "check":
        assert made.checkpointing.check_folder()
    else:
        made.checkpointing.receive(PartFailed(0, TRAINER, "is no longer the folder"))
    (failure,) = made.failures
    assert (
        failure.message
        == f"{lost} is no longer the folder that this run has locked: it was removed, moved or replaced."
    )
    rescue = lost.with_name("run-rescued")
    assert [await anext(theirs.receive())] == [FolderMoved(str(rescue))]
    assert (made.plan.folder.path, made.checkpointing.newest) == (rescue, -1)
    made.checkpointing.receive(made.part(1))
    assert made.checkpointing.newest == 1
    assert (rescue / "checkpoints" / "000001").is_dir()
    assert not lost.exists()


@needs_unix
def test_a_folder_that_is_lost_when_the_run_has_failed_already_is_named_and_what_was_to_be_saved_is_saved(made, caplog):
    made.fail(HostFailed("the motor is on fire", "", "actor-0"))
    shutil.rmtree(made.plan.folder.path)
    assert made.checkpointing.check_folder()
    assert "is no longer the folder that this run has locked" in caplog.text
    made.checkpointing.receive(made.part(1))
    assert made.checkpointing.newest == 1
