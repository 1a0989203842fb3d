"""A run's copy in another storage: what is in it, when it is refused, and what an unreachable storage costs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from run_configs import INLINE, cartpole
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.preflight import missing_parts
from headrace.pipeline.run_folder.carrying import unpack
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.remote_copy import CheckpointCopier, prepare_copy
from headrace.queues.disks import Disks, answered


class Unsteady(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A storage in memory that refuses some uploads."""

    protocol = ("unsteady",)
    store: dict = {}
    pseudo_dirs = [""]
    uploads = 0
    refused: range = range(0)
    starts, answers = threading.Event(), threading.Event()

    def pipe_file(self, path, value, **options):
        self.starts.wait()
        return super().pipe_file(path, value, **options)

    def put_file(self, lpath, rpath, **options):
        type(self).uploads += 1
        if self.uploads - 1 in self.refused:
            raise PermissionError("no more room in the cloud")
        self.answers.wait()
        return super().put_file(lpath, rpath, **options)


@pytest.fixture(autouse=True)
def empty_storages() -> Iterator[None]:
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    Unsteady.uploads, Unsteady.refused = 0, range(0)
    Unsteady.starts.set()
    Unsteady.answers.set()
    yield
    Unsteady.starts.set()
    Unsteady.answers.set()
    for storage in (MemoryFileSystem, Unsteady):
        storage.store.clear()


def test_a_run_resumes_from_its_copy_where_its_folder_is_missing(tmp_path):
    first = run_here(cartpole(**INLINE), tmp_path / "here", "run", copy_to="memory://runs/a")
    assert [*MemoryFileSystem.store] == ["/runs/a/run.zip"]
    longer = cartpole(behaviors__CartPole__max_steps=5000, **INLINE)
    second = run_here(longer, tmp_path / "there", "run", copy_to="memory://runs/a", resume=True)
    assert second.checkpoint > first.checkpoint
    assert second.behaviors["CartPole"].step >= 5000
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["run"]
    copy = fetched("memory://runs/a/run.zip", tmp_path)
    assert newest_checkpoint(copy / "checkpoints").number == second.checkpoint
    assert {each.name for each in (copy / "CartPole").iterdir()} >= {"checkpoint.pt"}


def fetched(url: str, folder: Path) -> Path:
    fsspec.open(url).fs.get_file(fsspec.url_to_fs(url)[1], str(folder / "copy.zip"))
    return unpack(folder / "copy.zip", folder / "unpacked", None)


def test_a_copy_is_neither_replaced_by_another_run_nor_by_an_older_checkpoint(tmp_path):
    run_here(cartpole(**INLINE), tmp_path / "here", "run", copy_to="memory://runs")
    with pytest.raises(
        RunError, match="copy_to: memory://runs/run.zip: has checkpoint 2, which is newer than those in .*there"
    ):
        run_here(cartpole(**INLINE), tmp_path / "there", "run", copy_to="memory://runs")
    run_here(cartpole(behaviors__CartPole__max_steps=1000, **INLINE), tmp_path / "there", "run")
    with pytest.raises(RunError, match="move that folder away and use --resume"):
        run_here(cartpole(**INLINE), tmp_path / "there", "run", copy_to="memory://runs", resume=True)
    replaced = cartpole(behaviors__CartPole__max_steps=1000, **INLINE)
    result = run_here(replaced, tmp_path / "there", "run", copy_to="memory://runs", force=True)
    assert newest_checkpoint(fetched("memory://runs/run.zip", tmp_path) / "checkpoints").number == result.checkpoint < 2


@pytest.mark.parametrize(("refused", "copied"), [(range(1), True), (range(10**6), False)])
def test_an_upload_that_fails_is_warned_of_and_does_not_disturb_the_run(tmp_path, caplog, refused, copied):
    Unsteady.refused = refused
    result = run_here(cartpole(**INLINE), tmp_path, "run", copy_to="unsteady://runs")
    assert result.behaviors["CartPole"].step >= 3000
    warnings = [record.getMessage() for record in caplog.records if "was not copied" in record.getMessage()]
    assert set(warnings) == {"The newest checkpoint was not copied: PermissionError: no more room in the cloud."}
    assert len(warnings) == (1 if copied else 2)  # the second one is about the last checkpoint
    assert ("unsteady://runs/run.zip" in Unsteady.store) == copied
    assert not (tmp_path / "run" / "run_logs" / "copy.zip").exists() or not copied


@pytest.mark.parametrize("resume", [False, True])
def test_a_storage_that_does_not_answer_is_named_before_anything_starts(tmp_path, capfd, resume):
    Unsteady.starts.clear()
    settings = cartpole(pipeline__supervision__grace_s=0.2, **INLINE)
    with pytest.raises(RunError, match="copy_to: unsteady://runs/run.zip: .*the disk or storage has not answered for"):
        run_here(settings, tmp_path, "run", copy_to="unsteady://runs", resume=resume)
    assert "[WARNING] unsteady://runs/run.zip has not been read or written for" in capfd.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_storage_that_does_not_answer_holds_the_end_no_longer_than_grace_s(tmp_path, caplog, capfd):
    Unsteady.answers.clear()
    settings = cartpole(pipeline__supervision__grace_s=2.0, **INLINE)
    result = run_here(settings, tmp_path, "run", copy_to="unsteady://runs")
    assert result.behaviors["CartPole"].step >= 3000
    assert "[WARNING] unsteady://runs/run.zip has not been read or written for 1 s" in capfd.readouterr().err
    assert "The last checkpoint is not copied to unsteady://runs after 2 s" in caplog.text
    assert "unsteady://runs/run.zip" not in Unsteady.store


def test_a_run_whose_own_disk_hangs_does_not_wait_for_its_copy(tmp_path, caplog):
    result, answers = run_here(cartpole(**INLINE), tmp_path, "run", copy_to="unsteady://runs"), threading.Event()
    assert result.config is not None
    Unsteady.answers.clear()
    copier = CheckpointCopier(result.config, RunFolder(result.folder))
    copier.begin()
    with Disks(0.02, lambda _: None, checked_s=0.01).used():
        with pytest.raises(OSError, match="the disk or storage has not answered"):
            answered("a file", answers.wait, 20)
        copier.finish()
        answers.set()
    assert "The last checkpoint is not copied to unsteady://runs after 0 s" in caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("abfs://runs", r'copy_to: abfs://runs/run.zip: ImportError: .*; run `pip install "headrace\[storage\]"`'),
        ("cloud://runs", "copy_to: cloud://runs/run.zip: ValueError: Protocol not known: cloud"),
        ("file:///proc/runs", "copy_to: file:///proc/runs/run.zip: "),
    ],
)
def test_a_storage_that_cannot_be_used_is_named_before_anything_starts(tmp_path, url, message):
    settings = {"results_dir": str(tmp_path / "results"), "run_id": "run", "copy_to": url}
    config = RunConfig.from_plain({**cartpole(), "checkpoint_settings": settings})
    with pytest.raises(RunError, match=message):
        prepare_copy(config)
    assert any(url in line for line in missing_parts(config))
    assert not (tmp_path / "results").exists()


def test_a_run_without_fsspec_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        RunError, match=r"copy_to: memory://runs/run.zip: .*fsspec.*; run `pip install \"headrace\[storage\]\"`"
    ):
        run_here(cartpole(**INLINE), tmp_path, "run", copy_to="memory://runs")


def test_validation_knows_the_copy_of_a_run_without_a_folder(tmp_path):
    settings = {"results_dir": str(tmp_path / "there"), "run_id": "run", "copy_to": "memory://runs", "resume": True}
    config = RunConfig.from_plain({**cartpole(), "checkpoint_settings": settings})
    assert any("there is no run 'run'" in line for line in missing_parts(config))
    run_here(cartpole(**INLINE), tmp_path / "here", "run", copy_to="memory://runs")
    assert not [*missing_parts(config)]
    assert not (tmp_path / "there").exists()


def test_a_damaged_copy_is_refused(tmp_path):
    run_here(cartpole(**INLINE), tmp_path / "here", "run", copy_to="memory://runs")
    file = fsspec.filesystem("memory")
    file.pipe_file("/runs/run.zip", file.cat_file("/runs/run.zip")[:-100])
    with pytest.raises(RunError, match="copy_to: memory://runs/run.zip: .*no item named 'headrace.json'"):
        run_here(cartpole(**INLINE), tmp_path / "there", "run", copy_to="memory://runs", resume=True)
