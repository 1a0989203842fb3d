"""Demonstration files: what is written comes back, Unity's own are understood, and broken ones say what is wrong."""

import numpy as np
import pytest
from demo_samples import BRAIN_AT, brain, delimited, episode, pair, unity_file
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.unity.demo_steps import META_ROOM, DemoReader, read_demo, write_demo
from headrace.stages.environments.engines.unity.messages import DemonstrationMetaProto
from headrace.stages.errors import StageError


def test_unitys_files_are_read_pair_by_pair(tmp_path):
    pairs = [*episode(2), *episode(3)]
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs))
    assert list(reader) == pairs
    assert list(reader) == pairs, "any number of times"
    assert reader.damage is None, "what Unity leaves behind the pairs is no damage"
    assert reader.brain == brain()
    assert (reader.meta.demonstration_name, reader.meta.number_steps, reader.meta.number_episodes) == ("Expert", 7, 3)


def test_a_recording_that_was_never_closed_is_read_to_its_end(tmp_path):
    pairs = episode(4)
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs, closed=False))
    assert (list(reader), reader.meta.number_steps, reader.damage) == (pairs, 0, None)


@pytest.mark.parametrize("closed", [True, False])
def test_the_complete_pairs_of_a_truncated_file_are_read(tmp_path, closed):
    pairs = episode(4)
    path = unity_file(tmp_path / "a.demo", pairs, closed=closed)
    behind = len(path.read_bytes()) - len(unity_file(tmp_path / "b.demo", pairs, closed=False).read_bytes())
    path.write_bytes(path.read_bytes()[: -behind - 3])
    reader = DemoReader(path)
    assert list(reader) == pairs[:4]
    assert "a.demo: truncated or damaged: pair 5" in reader.damage
    assert "claims" in reader.damage


def test_a_file_that_ends_between_two_pairs_before_its_number_of_steps_is_reported(tmp_path):
    pairs = episode(4)
    whole = unity_file(tmp_path / "a.demo", pairs).read_bytes()
    short = unity_file(tmp_path / "b.demo", pairs[:3], closed=False).read_bytes()
    (tmp_path / "c.demo").write_bytes(whole[:BRAIN_AT] + short[BRAIN_AT:])
    reader = DemoReader(tmp_path / "c.demo")
    assert list(reader) == pairs[:3]
    assert "pair 4 of 5" in reader.damage


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_ends_the_pairs(tmp_path):
    path = unity_file(tmp_path / "a.demo", episode(2), closed=False)
    path.write_bytes(path.read_bytes() + bytes(500))
    reader = DemoReader(path)
    assert list(reader) == episode(2)
    assert "pair 4, near byte" in reader.damage


@pytest.mark.parametrize("version", [0, 1])
def test_both_versions_of_the_format_are_read(tmp_path, version):
    path = unity_file(tmp_path / "a.demo", episode(2), closed=False)
    head = delimited(DemonstrationMetaProto(api_version=version, demonstration_name="Old"))
    path.write_bytes(head.ljust(BRAIN_AT, b"\0") + path.read_bytes()[BRAIN_AT:])
    assert len(list(DemoReader(path))) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty; record the demonstration again"),
        (
            b"# a text file that somebody renamed to .demo, of more than a few bytes\n",
            r"not a demonstration \(.*\); expected a",
        ),
        (b"\xff" * 100, r"not a demonstration \(has no length at byte 0\)"),
        (b"\x02\x08\x07".ljust(40, b"\0"), "has format version 7; expected 0 or 1; record it again"),
    ],
)
def test_files_that_are_not_demonstrations_are_refused(tmp_path, data, message):
    (tmp_path / "a.demo").write_bytes(data)
    with pytest.raises(StageError, match=r"a\.demo: .*" + message):
        DemoReader(tmp_path / "a.demo")


@given(st.data())
def test_a_changed_byte_causes_no_other_error(tmp_path_factory, data):
    path = unity_file(tmp_path_factory.mktemp("changed") / "a.demo", episode(3))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        reader = DemoReader(path)
    except StageError:
        return
    assert len(list(reader)) <= 4 or reader.meta.number_steps != 4


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(StageError, match=r"nowhere\.demo: can't read the demonstration: No such file"):
        DemoReader(tmp_path / "nowhere.demo")


def test_a_header_that_overwrote_the_description_is_refused(tmp_path):
    """Some packages let a recording have a name so long that its final header does not fit."""
    path = unity_file(tmp_path / "a.demo", episode(3), "seventeen letters and some")
    with pytest.raises(StageError, match=r"not a demonstration \(its header does not fit the space.*a shorter name"):
        DemoReader(path)


def written(tmp_path, pairs, name="Expert"):
    """A file of our own writer with Unity's pairs."""
    steps = read_demo(unity_file(tmp_path / "unity.demo", pairs))
    write_demo(tmp_path / "new" / "a.demo", steps, name)
    return tmp_path / "new" / "a.demo"


def test_a_written_file_has_unity_s_layout(tmp_path):
    pairs = episode(2)
    data = written(tmp_path, pairs).read_bytes()
    meta = DemonstrationMetaProto(
        api_version=1, demonstration_name="Expert", number_steps=3, number_episodes=1, mean_reward=np.float32(0.01)
    )
    assert data[: data[0] + 1] == delimited(meta)
    assert data[BRAIN_AT:] == delimited(brain()) + b"".join(delimited(each) for each in pairs)


def test_an_unfinished_episode_counts(tmp_path):
    meta = DemoReader(written(tmp_path, [*episode(4), pair([0.0]), pair([0.1], reward=0.5)])).meta
    assert (meta.number_steps, meta.number_episodes) == (7, 2)
    assert meta.mean_reward == pytest.approx((0.06 + 0.5) / 2)


@given(name=st.text(max_size=60))
def test_a_name_that_does_not_fit_is_cut_and_the_description_stays_whole(tmp_path_factory, name):
    path = written(tmp_path_factory.mktemp("names"), episode(1), name)
    reader = DemoReader(path)
    assert reader.brain == brain()
    assert name.startswith(reader.meta.demonstration_name)
    assert len(reader.meta.demonstration_name) >= min(len(name), 2), "11 bytes always fit"
    assert path.read_bytes()[0] < META_ROOM


def test_an_existing_file_is_not_overwritten(tmp_path):
    path = written(tmp_path, episode(1))
    data = path.read_bytes()
    with pytest.raises(StageError, match=r"a\.demo: the file already exists; remove it"):
        written(tmp_path, episode(2))
    assert path.read_bytes() == data
