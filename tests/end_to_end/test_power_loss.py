"""A power loss at any moment of a run: whatever the disk then holds, the run resumes, and no announced checkpoint is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from league_runs import CONFIG, League
from power_loss import LOSSES, Disk, trace, write
from runs import COMMAND

from headrace.pipeline.run_folder.folder import read_configuration
from headrace.pipeline.run_folder.resuming import choose_checkpoint
from headrace.queues.errors import StreamError
from headrace.queues.stream_file import StreamReader
from headrace.stages.league.pool import check_members

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


def finished(folder, *arguments):
    """Run the league in a folder to its end."""
    plain = deepcopy(CONFIG)
    plain["behaviors"]["RPS"] |= {"max_steps": 6000, "checkpoint_interval": 2000}
    plain["record"] = {"edges": ["trainer"]}
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    line = [sys.executable, str(COMMAND), "run.yaml", "--run-id", "run", *arguments]
    before = trace(folder / "calls.log") if not arguments else []
    done = subprocess.run([*before, *line], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def held(folder):
    """The content of all files in `results`, by path."""
    found = ((f"{path.relative_to(folder)}", path) for path in (folder / "results").rglob("*"))
    return {f"{name}/" if path.is_dir() else name: b"" if path.is_dir() else path.read_bytes() for name, path in found}


def announced(disk):
    """The newest checkpoint whose name is durable."""
    paths = (path.split("/") for path in disk.files("all lost"))
    numbers = (int(parts[3]) for parts in paths if parts[2:3] == ["checkpoints"] and parts[3].isdecimal())
    return max(numbers, default=-1)


def assert_loads(run: Path, promised):
    """A run can resume from a folder, from a checkpoint that is not older than the promised one."""
    chosen = choose_checkpoint(run / "checkpoints")
    assert (chosen.number if chosen else -1) >= promised
    assert not [*run.glob("checkpoints/*.damaged")]
    if chosen is not None:
        assert read_configuration(run)
        check_members(run / "RPS" / "league", chosen.read("league@main")["RPS"]["members"])
    for path in run.glob("streams/*.stream"):
        with suppress(StreamError):  # nothing of it was durable
            for _ in StreamReader(path):
                pass


def test_a_run_resumes_after_a_power_loss_at_any_moment(tmp_path):
    finished(tmp_path / "run")
    disk, seen, promised, resumable = Disk(tmp_path / "run"), set(), -1, []
    for call in disk.replay(tmp_path / "run" / "calls.log"):
        promised = max(promised, announced(disk)) if call == "fsync" else promised
        for loss in LOSSES:
            files = {path: content for path, content in disk.files(loss).items() if path.startswith("results/")}
            state = hash(frozenset(files.items()))
            if state not in seen and "results/run/" in files:
                seen.add(state)
                write(files, tmp_path / "left")
                assert_loads(tmp_path / "left" / "results" / "run", promised)
                shutil.rmtree(tmp_path / "left")
                resumable.append((loss, files))
    kept = {path: content for path, content in disk.files("everything kept").items() if path.startswith("results/")}
    assert kept == {"results/": b"", **held(tmp_path / "run")}, "the model of the disk is right"
    assert promised == League(tmp_path / "run" / "results" / "run").newest()
    print(f"{len(seen)} states")
    for number, part in enumerate((0.3, 0.6, 0.9)):
        loss, files = next(entry for entry in resumable[int(part * len(resumable)) :] if entry[0] == "all lost")
        write(files, tmp_path / f"again-{number}")
        assert "results/run" in finished(tmp_path / f"again-{number}", "--resume"), loss
