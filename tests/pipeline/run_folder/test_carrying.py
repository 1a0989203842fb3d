"""A run in one file: what is in it, and how a damaged one, or another program's, is refused."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from headrace import load
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.run_folder.carrying import LISTING, carry, unpack
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint, write_manifest, write_part


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run with two checkpoints, exports, and things that stay behind."""
    folder = tmp_path / "results" / "first"
    for number in (0, 1):
        part = write_part(folder / "checkpoints", number, "trainer@learner-Ball", {"number": number})
        write_manifest(folder / "checkpoints", number, [part], {"Ball": 100 * number}, {})
    (folder / "configuration.yaml").write_text("behaviors: {Ball: {}}\n")
    for name in ("Ball/Ball-100.pt", "Ball/checkpoint.pt", "Ball/Ball-100.onnx", "Ball/events.out", "streams/a.stream"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def test_a_run_comes_back_with_its_newest_checkpoint_and_its_policies(run_folder, tmp_path):
    file = carry(run_folder, tmp_path / "ball")
    assert file == tmp_path / "ball.zip"
    folder = unpack(tmp_path / "ball", tmp_path / "elsewhere", None)
    assert folder == tmp_path / "elsewhere" / "first"
    checkpoint = newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.read("trainer@learner-Ball") == {"number": 1}
    assert (folder / "Ball" / "checkpoint.pt").read_bytes() == b"Ball/checkpoint.pt"
    names = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    assert names == {
        *("configuration.yaml", "Ball/Ball-100.pt", "Ball/checkpoint.pt", "Ball/Ball-100.onnx"),
        *("checkpoints/000001/manifest.json", "checkpoints/000001/trainer%40learner-Ball.part"),
    }


def test_an_existing_folder_is_not_overwritten(run_folder, tmp_path):
    file = carry(run_folder, tmp_path / "ball.zip")
    with pytest.raises(RunFolderError, match="first already exists: choose a different run_id"):
        unpack(file, run_folder.parent, None)
    assert unpack(file, run_folder.parent, "second").name == "second"


def test_a_run_without_a_whole_checkpoint_is_not_saved(run_folder, tmp_path):
    (run_folder / "checkpoints" / "000001" / "trainer%40learner-Ball.part").write_bytes(b"x")
    with pytest.raises(RunFolderError, match="can't be saved: .*is damaged: it has 1 bytes"):
        carry(run_folder, tmp_path / "ball")
    with pytest.raises(RunFolderError, match="can't be saved: it has no checkpoint yet"):
        carry(tmp_path / "results" / "none", tmp_path / "ball")
    assert [each.name for each in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("stride", [293, pytest.param(1, marks=pytest.mark.slow)])
def test_any_byte_that_changes_is_named_or_is_of_no_account(run_folder, tmp_path, stride):
    file = carry(run_folder, tmp_path / "ball.zip")
    whole, named = file.read_bytes(), 0
    for place in range(0, len(whole), stride):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with suppress(RunFolderError):
            folder = unpack(file, tmp_path / "out", "copy")
            assert all(each.read_bytes() == (run_folder / each.relative_to(folder)).read_bytes() for each in of(folder))
            shutil.rmtree(folder)
            continue
        named += 1
    assert named > len(whole) // stride // 2
    file.write_bytes(whole[:-30])  # which ends with a policy, an archive too
    with pytest.raises(RunFolderError, match="ball.zip is damaged or is not a saved run"):
        unpack(file, tmp_path / "out", "cut")
    assert not list((tmp_path / "out").glob("*"))


def of(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"data": "", "policy.pth": ""}, "a Stable-Baselines3 model"),
        ({"archive/data.pkl": ""}, "a policy; read it with load_policy"),
        ({"a.txt": ""}, "this archive was not written by RunResult.save"),
        ({LISTING: json.dumps({"format": 9})}, "format 9, but this version of Headrace reads format 1"),
        ({LISTING: json.dumps({"format": 1})}, "is damaged or is not a saved run"),
    ],
)
def test_other_archives_are_refused_by_their_kind(tmp_path, members, message):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    with pytest.raises(RunFolderError, match=message):
        unpack(tmp_path / "x.zip", tmp_path, None)


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a\\..\\out"])
def test_a_file_outside_of_the_folder_is_refused_by_name(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(name, "")
        archive.writestr(LISTING, json.dumps({"format": 1, "run_id": "first"}))
    with pytest.raises(RunFolderError, match=r"x\.zip: its entry '.*out' is outside the run's folder"):
        unpack(tmp_path / "x.zip", tmp_path / "results", None)
    assert not of(tmp_path / "results")


def test_an_archive_of_deep_folders_leaves_no_folder_behind(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(LISTING, json.dumps({"format": 1, "run_id": "first"}))
        for depth in (400, 800, 1200):  # deeper than `shutil.rmtree` reaches
            archive.writestr("d/" * depth + "a", "")
        archive.writestr("x" * 300, "")
    with pytest.raises(RunFolderError, match=r"x\.zip: its entry 'd/d/.*' is outside the run's folder or too deep"):
        unpack(tmp_path / "x.zip", tmp_path / "results", None)
    assert not (tmp_path / "results").exists()


def test_an_archive_that_unpacks_to_more_than_its_file_is_refused_before_anything_is_read(tmp_path):
    listing = json.dumps({"format": 1, "run_id": "first"})
    with zipfile.ZipFile(tmp_path / "compressed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(LISTING, listing + " " * 1_000_000)
    with zipfile.ZipFile(tmp_path / "overlapping.zip", "w") as archive:
        archive.writestr(LISTING, listing)
        archive.writestr("a", bytes(100_000))
        archive.filelist += [copy.copy(archive.filelist[-1]) for _ in range(100)]  # all name the same bytes
    for name, declared in {"compressed": "1,000,032", "overlapping": "10,100,032"}.items():
        with pytest.raises(RunFolderError, match=rf"{name}\.zip is damaged .*: its content declares {declared} bytes"):
            unpack(tmp_path / f"{name}.zip", tmp_path / "results", None)
    assert not (tmp_path / "results").exists()


def test_a_folder_that_can_not_be_loaded_is_removed(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(LISTING, json.dumps({"format": 1, "run_id": "first"}))
        archive.writestr("configuration.yaml", "behaviors: {Ball: {}}\nenvironment: {kind: builtin, id: Volley}\n")
    with pytest.raises(RunFolderError, match="it has no checkpoint") as refused:
        load(tmp_path / "x.zip", tmp_path / "results")
    assert refused.value.__notes__ == [
        f"{tmp_path / 'results' / 'first'} was unpacked from {tmp_path / 'x.zip'} and has been removed again."
    ]
    assert not list((tmp_path / "results").iterdir())


def test_a_missing_run_is_refused_by_name(tmp_path):
    with pytest.raises(RunFolderError, match=r"none\.zip: no such file or run folder"):
        unpack(tmp_path / "none", tmp_path, None)


def test_a_file_that_was_cut_is_not_taken_for_the_policy_in_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as policy:
        policy.writestr("archive/data.pkl", "")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(LISTING, json.dumps({"format": 1, "run_id": "first"}))
        archive.write(tmp_path / "a.pt", "a.pt")
    (tmp_path / "x.zip").write_bytes((tmp_path / "x.zip").read_bytes()[:-30])
    with pytest.raises(RunFolderError, match="belong to no entry, so a part of it is missing"):
        unpack(tmp_path / "x.zip", tmp_path / "results", None)
