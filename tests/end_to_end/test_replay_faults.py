"""Replays that can't go to their end, and recordings in which a behaviour is born late: nothing waits for ever."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from run_configs import INLINE, late
from run_folders import streams, weights_digest
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunFailed
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader, StreamWriter

ENDLESS = {"behaviors__Early__max_steps": 10**6, "behaviors__Late__max_steps": 10**6}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a run that was recorded at both edges."""
    plain = late(record__edges=["agent_processor", "trainer"], **INLINE)
    return run_here(plain, tmp_path_factory.mktemp("recorded"), "run").folder


@pytest.fixture(scope="module")
def behind_processor(recorded):
    """What left the agent processor."""
    return next(path for path in streams(recorded) if "agent_processor" in path)


def test_a_recording_describes_behaviors_that_appear_late(behind_processor):
    batches = [frame.message for frame in StreamReader(behind_processor) if isinstance(frame.message, TrajectoryBatch)]
    assert batches[0].behavior == "Early"
    assert {batch.behavior for batch in batches} == {"Early", "Late"}
    assert [spec.name for spec in StreamReader(behind_processor).header.specs] == ["Early", "Late"]


def replayed(results, *recordings, **changes):
    """Replay recordings in this process."""
    plain = late(**INLINE, replay__streams=list(recordings), **changes)
    if not changes:  # as a run writes them: the defaults for learning depend on the kind of environment
        plain["behaviors"] = RunConfig.from_plain(plain).to_plain()["behaviors"]
    del plain["environment"]
    return run_here(plain, results, "replay")


def test_a_late_behavior_is_replayed_from_the_agent_processors_recording(behind_processor, tmp_path):
    assert replayed(tmp_path, behind_processor).behaviors["Late"].step >= 2000


def test_a_late_behavior_is_replayed_from_the_trainers_recordings(recorded, tmp_path):
    replayed(tmp_path, *[path for path in streams(recorded) if "agent_processor" not in path])
    for name in ("Early", "Late"):
        assert weights_digest(tmp_path / "replay", name) == weights_digest(recorded, name)


def test_a_behavior_that_is_recorded_but_not_listed_is_named(behind_processor, tmp_path):
    with pytest.raises(RunFailed, match="the recording has a behaviour 'Late', which is not listed here"):
        replayed(tmp_path, behind_processor, behaviors={"Early": late()["behaviors"]["Early"]})


def test_a_replay_host_that_is_killed_ends_the_run_by_name(behind_processor, start):
    plain = late(replay__speed=0.01, pipeline__hosts__learners__kind="inline")
    replay = start(plain, "--replay", behind_processor)
    replay.until(lambda: "Connected new brain" in replay.output, "a behaviour of the recording")
    os.kill(replay.pid_of("actor-0"), signal.SIGKILL)
    assert replay.wait() == 1
    assert "the process of actor-0 was killed by signal 9" in replay.output
    assert "Traceback" not in replay.output
    replay.assert_left_nothing()


def forged(path, original, change):
    """A copy of a stream whose fifth batch is another message."""
    reader = StreamReader(original)
    with StreamWriter(path, reader.header) as writer:
        for frame in reader:
            message = change(frame.message) if frame.sequence == 5 else frame.message
            writer.write(frame.edge, message, frame.time_s)
    return str(path)


def without_a_column(batch):
    return replace(batch, rows={name: rows for name, rows in batch.rows.items() if name != "obs_0"})


FORGED = {
    "unknown": (lambda batch: replace(batch, behavior_id="Nobody"), "'Nobody', which the file does not describe"),
    "a column missing": (without_a_column, "obs_0"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_message_ends_the_replay_by_name(behind_processor, kind, tmp_path):
    change, words = FORGED[kind]
    with pytest.raises(RunFailed, match=re.escape(words)):
        replayed(tmp_path, forged(tmp_path / "forged.stream", behind_processor, change))


def test_a_truncated_recording_is_replayed_to_its_last_whole_message(behind_processor, tmp_path):
    path = str(tmp_path / "cut.stream")
    data = Path(behind_processor).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * 0.9)])
    whole = [frame.message for frame in StreamReader(path) if isinstance(frame.message, TrajectoryBatch)]
    early = sum(batch.num_rows for batch in whole if batch.behavior == "Early")
    assert replayed(tmp_path, path, **ENDLESS).behaviors["Early"].step == early
