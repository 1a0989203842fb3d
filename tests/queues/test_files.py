"""Specifications of atomic files: every operation fails, or is the process's last, in turn."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fakes_files import Faulty, Held, Recorder, Stopped

from headrace.queues.files import File, FileOperations, clean_temporary, read_file, write_atomic

pytestmark = pytest.mark.windows_too

OLD, NEW = b"old" * 100, b"new!" * 100


def operations_of_a_write(folder: Path) -> list[str]:
    recorder = Recorder()
    write_atomic(folder / "probe", NEW, files=recorder)
    (folder / "probe").unlink()
    return recorder.done


def test_a_written_file_has_the_data_and_no_company(tmp_path):
    path = tmp_path / "state"
    write_atomic(path, OLD)
    write_atomic(path, bytearray(NEW))
    assert path.read_bytes() == NEW
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_a_failure_at_any_operation_leaves_the_old_or_the_new_file_whole(tmp_path, stop, half):
    operations = operations_of_a_write(tmp_path)
    replacing = operations.index("replace")
    for at in range(len(operations)):
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / "state"
        path.write_bytes(OLD)
        with pytest.raises(Stopped if stop else OSError):
            write_atomic(path, NEW, files=Faulty(at, stop, half))
        assert path.read_bytes() == (NEW if at > replacing else OLD)
        clean_temporary(folder)
        assert list(folder.iterdir()) == [path]


def test_a_write_that_the_system_cuts_short_is_continued(tmp_path):
    class Short(FileOperations):
        def perform(self, operation, file, function, *args, **kwargs):
            if operation == "write":
                return function(args[0][:7])
            return function(*args, **kwargs)

    write_atomic(tmp_path / "state", NEW, files=Short())
    assert (tmp_path / "state").read_bytes() == NEW


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="this platform does not sync folders")
def test_files_are_written_on_a_file_system_that_cannot_sync_folders(tmp_path):
    class NoFolderSync(Recorder):
        def perform(self, operation, file, function, *args, **kwargs):
            if operation == "fsync" and self.done[-1] == "open_folder":
                raise OSError(errno.EINVAL, "not for folders")
            return super().perform(operation, file, function, *args, **kwargs)

    write_atomic(tmp_path / "state", NEW, files=NoFolderSync())
    assert (tmp_path / "state").read_bytes() == NEW


def test_cleaning_removes_left_over_temporary_files_and_nothing_else(tmp_path):
    write_atomic(tmp_path / "state", OLD)
    mine = ("notes.partial", ".hidden", "download.1-2.partial")
    for name in mine:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(Stopped):
        write_atomic(tmp_path / "state", NEW, files=Faulty(4, stop=True))
    assert len([*tmp_path.iterdir()]) == 2 + len(mine)
    clean_temporary(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"state", *mine}


def test_removing_a_tree_removes_links_but_not_what_they_point_to(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"1")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").write_bytes(b"2")
    try:
        (tree / "link").symlink_to(kept, target_is_directory=True)
    except OSError:
        pytest.skip("this platform does not let us make links")
    FileOperations().remove_tree(tree)
    assert not tree.exists()
    assert (kept / "file").read_bytes() == b"1"


@pytest.mark.parametrize("operation", ["open", "replace", "unlink", "mkdir", "rmdir"])
def test_operations_on_files_held_briefly_by_another_program_are_retried(tmp_path, operation):
    files = Held(operation, tries=3)
    files.make_folder(tmp_path / "a" / "b")
    write_atomic(tmp_path / "a" / "b" / "file", NEW, files=files)
    files.remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert len(files.pauses) == 3


def test_a_file_that_stays_held_is_named_and_the_old_one_stays(tmp_path):
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(PermissionError, match="another program has kept the file open"):
        write_atomic(tmp_path / "file", NEW, files=Held("replace", tries=99))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOTSUP])
def test_a_file_is_copied_if_the_file_system_has_no_links(tmp_path, number):
    class WithoutLinks(FileOperations):
        def perform(self, operation, file, function, *args, **kwargs):
            if operation == "link":
                raise OSError(number, "no links here")
            return super().perform(operation, file, function, *args, **kwargs)

    (tmp_path / "a").write_bytes(NEW)
    WithoutLinks().link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == NEW


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        for read in (read_file, File):
            with pytest.raises(OSError, match=f"is not a regular file: .*{name}"):
                read(tmp_path / name)
