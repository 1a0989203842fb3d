"""The pool: files that never change, an index that follows them, what is left of a run that was killed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from league_fakes import added, policy

from headrace.config.brains import MemberSettings
from headrace.queues.files import File
from headrace.stages.errors import StageError
from headrace.stages.league.pool import INDEX, Pool, check_members, read_index, read_member


def brain(use: object, name: str) -> MemberSettings:
    return MemberSettings.model_validate({"use": str(use), "name": name})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_member_is_read_as_it_was_frozen(tmp_path):
    folder = tmp_path / "run" / "league"
    pool = Pool(folder)
    assert not folder.exists()
    update = policy("main", 40, 0.1, 7)
    member = added(pool, update, "main", -1)
    update.weights[:] = 5  # a trainer goes on
    found = read_member(folder, member)
    assert (member.number, member.learner, member.parent, member.step, member.version) == (0, "main", -1, 40, 7)
    assert (found.behavior_id, found.version, found.step, found.snapshot) == ("Duel.main", 7, 40, 0)
    assert found.layout == update.layout
    assert found.weights.tobytes() == np.full(3, 0.1, np.float32).tobytes()
    assert found.weights.flags.writeable
    assert added(pool, policy("exploiter", 50), "exploiter", 0).number == 1
    assert Pool(folder).members == pool.members


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="elsewhere a descriptor does not tell its path")
def test_a_new_pools_folder_survives_a_power_loss(tmp_path, monkeypatch):
    """A name is durable once its folder is synced."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    added(Pool(tmp_path / "Ball" / "league"), policy(), "main", -1)
    assert {str(tmp_path), str(tmp_path / "Ball"), str(tmp_path / "Ball" / "league")} <= {*synced}


def test_weights_that_have_changed_are_refused_with_both_hashes(tmp_path):
    pool = Pool(tmp_path)
    member, other = added(pool, policy(fill=1.0), "main", -1), added(pool, policy(fill=2.0), "main", 0)
    os.replace(tmp_path / other.path, tmp_path / member.path)
    with pytest.raises(StageError, match=rf"{member.path}, member 0 \(main 0\).*{member.hash} and is {other.hash}"):
        read_member(tmp_path, member)
    with pytest.raises(StageError, match=rf"{other.path}, member 1 \(main 1\).* is missing"):
        read_member(tmp_path, other)
    (tmp_path / other.path).write_bytes(b"\x81")
    with pytest.raises(StageError, match=rf"{other.path}, member 1 \(main 1\).*can't be read"):
        read_member(tmp_path, other)


def test_a_kill_before_the_index_leaves_a_file_that_is_taken_over(tmp_path):
    added(Pool(tmp_path), policy(), "main", -1)
    before = (tmp_path / INDEX).read_bytes()
    orphan = added(Pool(tmp_path), policy(fill=1.0), "main", 0)
    (tmp_path / INDEX).write_bytes(before)
    pool = Pool(tmp_path)
    assert [member.number for member in pool.members] == [0]
    written_ns = (tmp_path / orphan.path).stat().st_mtime_ns
    assert added(pool, policy(fill=1.0), "main", 0) == orphan
    assert (tmp_path / orphan.path).stat().st_mtime_ns == written_ns


def test_a_kill_before_the_index_leaves_a_file_that_another_member_replaces(tmp_path):
    added(Pool(tmp_path), policy(), "main", -1)
    before = (tmp_path / INDEX).read_bytes()
    orphan = added(Pool(tmp_path), policy(fill=1.0), "main", 0)
    (tmp_path / INDEX).write_bytes(before)
    (tmp_path / f".{orphan.path}.77.partial").write_bytes(b"half")
    pool = Pool(tmp_path)
    member = added(pool, policy(fill=2.0), "main", 0)
    assert read_member(tmp_path, member).weights[0] == 2.0
    assert orphan.path not in files(tmp_path)
    pool.restore(pool.state_dict())
    assert files(tmp_path) == sorted([INDEX, *(each.path for each in pool.members)])


def test_a_disk_that_refuses_leaves_the_pool_as_it_was(tmp_path, monkeypatch):
    pool = Pool(tmp_path)
    added(pool, policy(), "main", -1)
    before = files(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        added(pool, policy(fill=1.0), "main", 0)
    monkeypatch.undo()
    assert len(pool.members) == 1
    assert files(tmp_path) == before
    assert added(pool, policy(fill=1.0), "main", 0).number == 1


def test_a_run_that_goes_back_to_a_checkpoint_has_the_pool_of_that_time(tmp_path):
    pool = Pool(tmp_path)
    first = added(pool, policy(), "main", -1)
    state = pool.state_dict()
    later = added(pool, policy(fill=1.0), "main", 0)
    resumed = Pool(tmp_path)
    resumed.restore(json.loads(json.dumps(state)))
    assert list(resumed.members) == [first]
    assert later.path not in files(tmp_path)
    assert Pool(tmp_path).members == resumed.members


def test_a_checkpoint_whose_members_are_gone_or_damaged_is_refused(tmp_path):
    pool = Pool(tmp_path)
    members = [added(pool, policy(fill=float(number)), "main", -1) for number in range(2)]
    check_members(tmp_path, pool.state_dict())
    path = tmp_path / members[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StageError, match=rf"{path.name}, member 1 \(main 1\).* has changed since it was frozen"):
        check_members(tmp_path, pool.state_dict())
    path.unlink()
    with pytest.raises(StageError, match=rf"{path.name}, member 1 \(main 1\) of the league's pool, is missing"):
        check_members(tmp_path, pool.state_dict())


def test_an_index_of_another_format_is_refused(tmp_path):
    (tmp_path / INDEX).write_text('{"format": 2}', encoding="utf-8")
    with pytest.raises(StageError, match=r"pool\.json has format 2, but this version of Headrace reads format 1"):
        Pool(tmp_path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: "{", "Expecting property name"),
        (lambda text: "[" * 100_000, "nest too deeply"),
        (lambda text: text.replace('"step": 5', '"step": NaN'), "contains NaN"),
        (lambda text: text.replace('"step": 5', '"step": "5"'), "member 0 has a value of a different kind"),
        (lambda text: text.replace('"path": "', '"path": "../'), "member 0 names a file that is not a member's"),
        (lambda text: text.replace(".policy", ".policy" * 1000), "member 0 names a file that is not a member's"),
        (lambda text: text.replace('"number": 0', '"number": 7'), "a different number"),
    ],
)
def test_a_damaged_index_costs_no_more_than_a_missing_one(tmp_path, damage, why, caplog):
    pool = Pool(tmp_path)
    member = added(pool, policy("main", 5), "main", -1)
    (tmp_path / INDEX).write_text(damage((tmp_path / INDEX).read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"pool\.json, which lists the members .*{why}"):
        read_index(tmp_path)
    again = Pool(tmp_path)
    assert not again.members
    assert why in caplog.text
    again.restore(pool.state_dict())
    assert read_index(tmp_path) == [member]


def test_a_folder_in_place_of_the_index_is_put_aside(tmp_path):
    member = added(Pool(tmp_path), policy("main", 5), "main", -1)
    state = [asdict(member)]
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX / "mine").mkdir(parents=True)
    Pool(tmp_path).restore(state)
    assert read_index(tmp_path) == [member]
    assert (tmp_path / f"{INDEX}.damaged" / "mine").is_dir()


def test_a_folder_among_the_files_of_members_is_left_alone(tmp_path):
    pool = Pool(tmp_path)
    added(pool, policy(), "main", -1)
    (tmp_path / "00099-abc.policy").mkdir()
    pool.restore(pool.state_dict())
    assert (tmp_path / "00099-abc.policy").is_dir()


@pytest.mark.parametrize("failures", [1, 3])
def test_a_member_is_read_again_if_the_disk_refuses_to_close_its_file(tmp_path, monkeypatch, failures):
    pool = Pool(tmp_path)
    member = added(pool, policy(fill=0.5), "main", -1)
    read, left = File.readall, [failures]

    def refusing(file: File) -> bytes:
        data = read(file)
        if left[0]:
            left[0] -= 1
            raise OSError(5, "Input/output error")
        return data

    monkeypatch.setattr(File, "readall", refusing)
    assert read_member(tmp_path, member).weights[0] == 0.5
    assert left == [0]


def test_brains_are_members_whose_files_may_not_change(tmp_path):
    model = tmp_path / "old.onnx"
    model.write_bytes(b"a model")
    brains = [brain(model, "old"), brain("random", "chance")]
    pool = Pool(tmp_path / "league")
    pool.add_brains(brains, {})
    assert [(each.number, each.learner, each.use, each.name, each.label) for each in pool.members] == [
        (0, "", str(model), "old", "old"),
        (1, "", "random", "chance", "chance"),
    ]
    assert (len(pool.members[0].hash), pool.members[1].hash) == (64, "")
    again = Pool(tmp_path / "league")
    again.add_brains([*brains, brain("scripted", "rule")], {})
    assert [each.name for each in again.members] == ["old", "chance", "rule"]
    model.write_bytes(b"another model")
    with pytest.raises(StageError, match=r"old\.onnx, member 0 \(old\).*has changed"):
        Pool(tmp_path / "league").add_brains(brains, {})
