"""Specifications of a run's folder that is lost while the run writes there: it is noticed, and nobody else's is touched."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import yaml
from lost_folders import move, move_the_parent, remove, replace_by_a_copy

from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.lock import GUARD, LOCK, HeldFolder, refuse_writes

NOT_WINDOWS = pytest.mark.skipif(os.name == "nt", reason="Windows removes no folder in which a file is open")
pytestmark = NOT_WINDOWS


@pytest.fixture
def held(tmp_path):
    with RunFolder.create(tmp_path / "results", "run", configuration="seed: 3\n") as folder:
        yield folder


def replace_by_a_file(path):
    shutil.rmtree(path)
    path.write_text("a file")


def replace_by_an_empty_one(path):
    shutil.rmtree(path)
    path.mkdir()


def remove_the_lock(path):
    (path / GUARD).unlink()


def let_another_take_it(path):
    (path / GUARD).unlink()
    RunFolder.create(path.parent, "run", resume=True).close()


WAYS = [
    remove,
    move,
    move_the_parent,
    replace_by_a_file,
    replace_by_a_copy,
    replace_by_an_empty_one,
    remove_the_lock,
    let_another_take_it,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_is_lost_is_noticed_and_one_that_is_not_is_not(held, way):
    as_seen_by_a_host = HeldFolder(held.path)
    assert held.lost() == ""
    as_seen_by_a_host.check()
    way(held.path)
    assert held.lost().startswith(f"{held.path} is no longer the folder that this run has locked: it was removed")
    with pytest.raises(OSError, match="is no longer the folder"):
        as_seen_by_a_host.check()


def test_a_folder_refuses_a_host_that_main_has_lost_and_no_other(held):
    lost, replacement, main = (HeldFolder(held.path, incarnation) for incarnation in (17, 170, 0))
    refuse_writes(held.path, 16)
    lost.check()
    refuse_writes(held.path, 17)
    with pytest.raises(OSError, match="accepts nothing from this host, because main has lost it"):
        lost.check()
    assert replacement.check() == main.check() == held.path
    assert held.lost() == ""


def test_the_name_of_another_process_is_left_to_it(held):
    remove_the_lock(held.path)
    with RunFolder.create(held.path.parent, "run", resume=True) as other:
        before = (other.path / LOCK).read_bytes()
        held.close()
        assert (other.path / LOCK).read_bytes() == before


def test_a_run_whose_folder_is_lost_continues_in_a_locked_folder_next_to_it(held):
    lost = held.path
    remove(lost)
    held.rescue()
    assert (held.path, held.lost()) == (lost.with_name("run-rescued"), "")
    assert held.rescued_as == "--run-id run-rescued"
    assert yaml.safe_load((held.path / "configuration.yaml").read_text()) == {
        "seed": 3,
        "checkpoint_settings": {"run_id": "run-rescued"},
    }
    assert not lost.exists()
    with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
        RunFolder.create(lost.parent, "run-rescued", resume=True)
    assert json.loads((held.path / LOCK).read_bytes())["pid"] == os.getpid()


def test_a_lost_run_continues_in_the_temporary_folder_if_it_must(held, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    replace_by_a_file(held.path.parent)
    held.rescue()
    assert held.path == tmp_path / "tmp" / "run-rescued"
    assert held.rescued_as == f"--run-id run-rescued --results-dir {tmp_path / 'tmp'}"


def test_nothing_is_written_any_more_if_no_folder_can_be_made(held, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(held.path.parent))
    replace_by_a_file(held.path.parent)
    with pytest.raises(OSError, match="no replacement folder can be created in"):
        held.rescue()
    assert held.waits
    assert held.lost() == ""
