"""A file call whose disk hangs: named, failed after a limit, and it costs nothing but itself."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.queues.disks import Disks, answered, waits_for_disk
from headrace.queues.files import File, append, read_file, write_atomic


def test_a_file_call_returns_or_raises_what_its_function_does(tmp_path):
    assert answered(tmp_path, sorted, [2, 1]) == [1, 2]
    with pytest.raises(FileNotFoundError):
        answered(tmp_path, (tmp_path / "none").read_bytes)


def test_a_file_call_that_hangs_fails_and_so_do_all_others_until_it_returns(tmp_path):
    hangs, path, told = threading.Event(), tmp_path / "file", []
    disks = Disks(0.05, told.append, checked_s=0.01)
    with disks.used():
        with pytest.raises(OSError, match=f"the disk or storage has not answered for 0 s: {path}"):
            answered(path, hangs.wait, 20)
        (warning,) = told
        assert warning.startswith(f"[WARNING] {path} has not been read or written for 0 s; its storage may hang")
        with pytest.raises(OSError, match=f"the disk still has not answered for {path}"):
            answered(tmp_path, sorted, [2, 1])
    with Disks(0.05, told.append).used():
        assert answered(tmp_path, sorted, [2, 1]) == [1, 2], "other users of disks go on"
    assert waits_for_disk()
    (thread,) = (each for each in threading.enumerate() if each.name == "file call")
    hangs.set()
    thread.join()
    assert not waits_for_disk()
    with disks.used():
        assert answered(tmp_path, sorted, [2, 1]) == [1, 2]


def test_a_file_that_hangs_concerns_no_other_file_where_files_are_apart(tmp_path):
    hangs, path = threading.Event(), tmp_path / "file"
    with Disks(0.05, lambda _: None, checked_s=0.01, apart=True).used():
        with pytest.raises(OSError, match=f"the disk or storage has not answered for 0 s: {path}"):
            answered(path, hangs.wait, 20)
        assert answered(tmp_path, sorted, [2, 1]) == [1, 2]
        with pytest.raises(OSError, match=f"the disk still has not answered for {path}"):
            answered(path, sorted, [2, 1])
        (thread,) = (each for each in threading.enumerate() if each.name == "file call")
        hangs.set()
        thread.join()
        assert answered(path, sorted, [2, 1]) == [1, 2]


def test_a_slow_file_call_is_named_and_then_succeeds():
    told, named = [], threading.Event()

    def tell(line):
        told.append(line)
        named.set()

    with Disks(tell=tell, named_s=0.02, checked_s=0.01).used():
        assert answered("slow.bin", named.wait, 20)
    warning, news = told
    assert warning.startswith("[WARNING] slow.bin has not been read or written")
    assert news == "[INFO] slow.bin has now been read or written."


FILE_CALLS = {
    "append": lambda path: append(path, b"1"),
    "write": lambda path: File(path, "wb"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize("name", FILE_CALLS)
def test_a_file_that_never_answers_is_named_whatever_is_done_with_it(tmp_path, name):
    os.mkfifo(tmp_path / "file")  # opening it waits for the other end
    told = []
    with Disks(0.05, told.append, checked_s=0.01).used(), pytest.raises(OSError, match="has not answered for 0 s"):
        FILE_CALLS[name](tmp_path / "file")
    assert [str(tmp_path / "file") in line for line in told] == [True]
    os.close(os.open(tmp_path / "file", os.O_RDWR))  # the call that hangs returns
    for thread in threading.enumerate():
        if thread.name == "file call":
            thread.join()


def test_a_file_is_written_whole_by_a_function(tmp_path):
    write_atomic(tmp_path / "file", lambda file: [file.write(b"12"), file.write(b"3")])
    assert read_file(tmp_path / "file") == b"123"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
