"""The user's own stages, placed by the YAML alone: what they do, seen from outside, and how misbehaviour ends."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from run_configs import INLINE, Plain, cartpole, changed, volley
from run_folders import read_whole_checkpoint, streams
from runs import Command, run_here

from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.reporting.console import ProgressSnapshot
from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_stages"
MISBEHAVING = Path(__file__).with_name("misbehaving_stages.py")
BAD = "misbehaving_stages:"
PAGE = Path(__file__).parents[2] / "docs" / "custom-stages.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for configurations, with the modules that they name beside them."""
    for module in (*EXAMPLE.glob("*.py"), MISBEHAVING):
        shutil.copy(module, tmp_path)
    return tmp_path


def with_stages(*stages: Plain, **changes: Any) -> Plain:
    return cartpole(pipeline__stages=list(stages), **changes)


def example_stages() -> list[Plain]:
    return [
        {"use": "my_stages:ClipReward", "after": "agent_processor", "behaviors": ["CartPole"], "with": {"limit": 0.5}},
        {"use": "my_stages:DropShortTrajectories", "with": {"min_steps": 9}},
        {"use": "my_stages:EpisodeReturnsCsv", "host": "main", "with": {"file": "episodes.csv"}},
    ]


def two_trajectories() -> TrajectoryBatch:
    """Of 1 and 3 steps; the first one's episode has ended."""
    return TrajectoryBatch(
        "Ball?team=1",
        source=4,
        rows={"obs_0": np.zeros((4, 2), np.float32), "rewards": np.array([3, -3, 0.5, 0], np.float32)},
        trajectories={
            "lengths": np.array([1, 3], np.int32),
            "credits": np.array([1, 3], np.int32),
            "terminated": np.array([True, False]),
            "truncated": np.array([False, False]),
        },
        episodes={
            "episode_agent_ids": np.array([7]),
            "episode_returns": np.array([3], np.float32),
            "episode_lengths": np.array([1], np.int32),
            "episode_learning": np.array([True]),
        },
    )


# Alone: a stage is a function of what it is fed. --------------------------------------------------------------------


def test_the_example_of_contributing_drops_short_trajectories():
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class DropShort" in code]
    written: dict[str, type] = {}
    exec(example, written)
    stage = written["DropShort"](min_steps=2)
    batch = two_trajectories()
    (kept,) = stage.process(batch)
    assert (kept.lengths.tolist(), kept.rewards.tolist()) == ([3], [-3, 0.5, 0])
    (spared,) = stage.process(batch.replace(terminated=np.array([False, False])))
    assert spared.lengths.tolist() == [1, 3]
    (empty,) = stage.process(batch.select(np.zeros(2, bool)))
    assert (empty.num_trajectories, empty.num_rows) == (0, 0)
    assert empty.episodes["episode_returns"].tolist() == [3]


# In the pipeline. ---------------------------------------------------------------------------------------------------


def test_the_yaml_places_stages_in_processes(folder: Path):
    """In addition to the example's stages, some keep their batches, whose shared memory must not be overwritten."""
    keep = [{"use": BAD + "Keeps"}, {"use": BAD + "Keeps", "name": "KeepsSharedMemory", "host": "main"}]
    placed = with_stages(*example_stages(), *keep, pipeline__max_policy_lag=1)
    command = Command(folder, placed, "--record")
    assert command.wait() == 0, command.output
    command.assert_left_nothing()

    batches = recorded(command.run_folder)
    assert {float(reward) for batch in batches for reward in np.unique(batch.rewards)} == {0.5}
    ended = [batch.lengths[batch.terminated | batch.truncated] for batch in batches]
    assert np.concatenate(ended).min() >= 9
    state = read_whole_checkpoint(command.run_folder)
    assert state["DropShortTrajectories@actor-0"]["dropped"] > 0
    assert len(episodes(command.run_folder)) == state["trainer@learner-CartPole"]["episodes"] > 0
    assert all(float(row["return"]) == int(row["length"]) for row in episodes(command.run_folder))  # before clipping


def test_the_example_runs_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    example = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    short = {"behaviors__CartPole__max_steps": 6000, "behaviors__CartPole__summary_freq": 3000}
    run_folder = run_here(changed(example, {**INLINE, **short}), folder, "run").folder
    assert len(episodes(run_folder)) > 0
    lines = [json.loads(line) for line in (run_folder / "summaries.jsonl").read_text().splitlines()]
    own = [line for line in lines if line["category"] == "CartPole"]
    assert [line["step"] for line in own] == [3000, 6000]
    assert all("Environment/Cumulative Reward" in line for line in own)


def test_the_examples_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    page = PAGE.read_text()
    code, _, alone, reporting = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_stages_of_the_page.py").write_text(code)
    scaled = yaml.safe_load(config.replace("my_stages:", "my_stages_of_the_page:"))
    scaled = changed(scaled, {**INLINE, "behaviors__CartPole__max_steps": 2000, "record__edges": ["trainer"]})
    run_folder = run_here(scaled, tmp_path, "run").folder
    assert {float(reward) for batch in recorded(run_folder) for reward in batch.rewards} == {float(np.float32(0.1))}

    names: dict[str, Any] = {"np": np}
    exec(compile(code + alone + reporting, str(PAGE), "exec"), names)
    names["test_rewards_are_scaled"]()
    names["test_low_rewards_are_dropped"]()


def test_the_state_of_stages_survives_a_resume(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    stages, run_folder = example_stages(), folder / "run"
    run_here(with_stages(*stages, behaviors__CartPole__max_steps=1500, **INLINE), folder, "run")
    before = read_whole_checkpoint(run_folder)
    run_here(with_stages(*stages, behaviors__CartPole__max_steps=2500, **INLINE), folder, "run", resume=True)
    after = read_whole_checkpoint(run_folder)
    drops = "DropShortTrajectories@actor-0"
    assert after[drops]["dropped"] > before[drops]["dropped"] > 0
    trainer = "trainer@learner-CartPole"
    assert len(episodes(run_folder)) == after[trainer]["episodes"] > before[trainer]["episodes"]


def test_an_async_stage_that_holds_batches_back_loses_none(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    holds = [{"use": BAD + "Holds"}, {"use": BAD + "Holds", "name": "HoldsToo", "host": "main"}]
    recording = {"record__edges": ["agent_processor", "trainer"], "pipeline__max_policy_lag": 1}
    run_here(with_stages(*holds, **recording, **INLINE), folder, "holding")
    before, after = (
        [m for m in (frame.message for frame in StreamReader(stream)) if isinstance(m, TrajectoryBatch)]
        for stream in (one_stream(folder / "holding", edge) for edge in ("agent_processor", "trainer"))
    )
    assert len(before) == len(after) > 5
    assert all(np.array_equal(a.rows["obs_0"], b.rows["obs_0"]) for a, b in zip(before, after, strict=True))


def test_a_stage_after_the_ghost_stage_sees_only_the_learning_team(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    placement = {"use": BAD + "OnlyLearning", "after": "ghost", "behaviors": ["Volley"]}
    short = volley(pipeline__stages=[placement], behaviors__Volley__max_steps=2500, **INLINE)
    result = run_here(short, folder, "ghosts")
    assert result.behaviors["Volley"].step >= 2500


def test_a_stage_of_an_installed_package_has_a_short_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    info = folder / "clipper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clipper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.stages]\nclip = my_stages:ClipReward\n")
    placed = with_stages({"use": "clip", "with": {"limit": 0.5}}, record__edges=["trainer"], **INLINE)
    assert set(recorded(run_here(placed, folder, "run").folder)[0].rewards.tolist()) == {0.5}


# Misbehaviour. ------------------------------------------------------------------------------------------------------


def test_a_stage_that_raises_ends_the_run_with_a_checkpoint(folder: Path, in_this_process: Callable[..., str]):
    never = {"behaviors__CartPole__checkpoint_interval": 500000}  # so that the only checkpoint is that of the failure
    bad = {"use": BAD + "Raises", "with": {"on_item": 8}}
    (folder / "run.yaml").write_text(yaml.safe_dump(with_stages(bad, **never, **INLINE)))
    arguments = (str(folder / "run.yaml"), "--run-id=run", f"--results-dir={folder}")
    said = in_this_process(main, *arguments, status=1)
    told = said.splitlines()[-3:]
    assert re.search(
        r"stage Raises failed on item 8: TrajectoryBatch of CartPole \(\d+ trajectories, \d+ steps, from actor 0\): "
        r"ValueError: this one is too hot \(at .*\.py:\d+, in process\)$",
        told[0],
    )
    assert told[1] == "[ERROR] Use --debug to see the full traceback."
    assert said.count("--debug") == 1
    assert told[2].endswith("--run-id run --resume")
    assert "Traceback" not in said
    reached = read_whole_checkpoint(folder / "run")["trainer@learner-CartPole"]["trainer"]["step"]
    assert reached > 0

    mended = with_stages({**bad, "with": {"on_item": 0}}, **never, **INLINE)
    (folder / "run.yaml").write_text(yaml.safe_dump(mended))
    in_this_process(main, *arguments, "--resume")
    assert read_whole_checkpoint(folder / "run")["trainer@learner-CartPole"]["trainer"]["step"] >= 3000 > reached


@pytest.mark.parametrize(
    ("stage", "doing"),
    [
        ("Returns", r"on item 1: .*process\(\) returned a TrajectoryBatch: use `yield`"),
        ("Coroutine", r"on item 1: .*process\(\) is async but yields nothing: use `yield`"),
        ("BadState", r"saving its part of checkpoint 0: state\['seen'\] is a set, which can't be saved"),
        ("CannotStart", r"while starting: FileNotFoundError: .*nowhere"),
    ],
)
def test_a_failure_names_its_stage_and_what_the_stage_did(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stage: str, doing: str
):
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(RunFailed, match=f"stage {stage}.* failed {doing}"):
        run_here(with_stages({"use": BAD + stage}, **INLINE), folder, "failing")


def test_a_stage_that_blocks_is_named_with_how_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.syspath_prepend(folder)
    in_main = {"use": BAD + "Blocks", "name": "B", "host": "main"}
    run_here(with_stages({"use": BAD + "Blocks"}, in_main, **INLINE), folder, "run")
    for stage in ("Blocks", "B-CartPole"):
        (blocked,) = re.findall(rf"stage {stage} blocked its event loop for ([\d.]+) s on item 2 ", caplog.text)
        assert float(blocked) >= 1.0


def test_a_stage_that_lets_nothing_through_is_named_and_the_run_can_be_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.syspath_prepend(folder)
    stop = StopRequest()

    def stop_once_warned(snapshot: ProgressSnapshot) -> None:
        if "The trainer of CartPole has received nothing since step 0" in caplog.text:
            stop.set()

    plain = with_stages({"use": BAD + "Swallows"}, **INLINE)
    assert run_here(plain, folder, "run", RunOptions(stop=stop, on_progress=stop_once_warned)).interrupted
    assert "(Swallows@actor-0: " in caplog.text


def test_every_wrong_name_is_reported_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    wrong = with_stages(
        {"use": BAD + "Raise"},
        {"use": "misbehaving:Raises", "name": "module"},
        {"use": BAD + "Raises", "name": "argument", "with": {"on_itm": 2}},
        {"use": "my_stages:DropShortTrajectories"},
        {"use": BAD + "NoStage"},
        {"use": "nowhere-offered"},
        **INLINE,
    )
    with pytest.raises(RunError) as caught:
        run_here(wrong, folder, "run")
    assert not (folder / "run").exists()
    for words in (
        "has no attribute 'Raise'; did you mean 'Raises'?",
        "no module named 'misbehaving' is in",
        "argument: misbehaving_stages:Raises does not accept {'on_itm': 2}: got an unexpected keyword argument 'on_itm'; "
        "its parameters are (on_item=0)",
        "does not accept {}: missing a required argument: 'min_steps'",
        "NoStage: expected a class derived from headrace.Stage",
        "'nowhere-offered' (entry-point group 'headrace.stages'): no installed package provides it",
    ):
        assert words in str(caught.value)


def test_a_constructor_that_raises_is_reported_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    expected = "creating my_stages:ClipReward raised ValueError: limit: expected more than 0, got -1"
    with pytest.raises(RunFailed, match=expected):
        run_here(with_stages({"use": "my_stages:ClipReward", "with": {"limit": -1}}, **INLINE), folder, "run")


def test_statistics_writers_are_checked_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    writers = [{"use": "my_writer:Json"}, {"use": "my_stages:ClipReward"}]
    with pytest.raises(RunError, match=r"(?s)did you mean 'JsonLines'.*ClipReward is not a statistics writer"):
        run_here(cartpole(pipeline__statistics_writers=writers, **INLINE), folder, "writers")
    assert not (folder / "writers").exists()


def one_stream(run_folder: Path, edge: str) -> str:
    (stream,) = (stream for stream in streams(run_folder) if f"-{edge}-" in stream)
    return stream


def recorded(run_folder: Path) -> list[TrajectoryBatch]:
    """What reached the trainer."""
    stream = one_stream(run_folder, "trainer")
    return [frame.message for frame in StreamReader(stream) if isinstance(frame.message, TrajectoryBatch)]


def episodes(run_folder: Path) -> list[dict[str, str]]:
    with (run_folder / "episodes.csv").open(newline="") as file:
        return list(csv.DictReader(file))
