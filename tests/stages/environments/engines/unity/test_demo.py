"""Demonstration files: what is written comes back, Unity's own are understood, and broken ones say what is wrong."""

import numpy as np
import pytest
from demo_samples import BRAIN_AT, brain, delimited, episode, pair, unity_file
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.unity.demo_steps import META_ROOM, DemoReader, DemoWriter, read_varint, varint
from headrace.stages.environments.engines.unity.messages import BrainParametersProto, DemonstrationMetaProto
from headrace.stages.errors import StageError


def test_unitys_files_are_read_pair_by_pair(tmp_path):
    pairs = [*episode(2), *episode(3)]
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs))
    assert list(reader) == pairs
    assert list(reader) == pairs, "any number of times"
    assert reader.damage is None, "what Unity leaves behind the pairs is no damage"
    assert reader.brain == brain()
    assert (reader.meta.name, reader.meta.steps, reader.meta.episodes) == ("Expert", 7, 3)


def test_a_recording_that_was_never_closed_is_read_to_its_end(tmp_path):
    pairs = episode(4)
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs, closed=False))
    assert (list(reader), reader.meta.steps, reader.damage) == (pairs, 0, None)


@pytest.mark.parametrize("closed", [True, False])
def test_what_is_whole_of_a_file_that_was_cut_is_read(tmp_path, closed):
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
        (bytes(100), r"not a demonstration \(it describes no behaviour\)"),
        (b"\xff" * 100, r"not a demonstration \(has no length at byte 0\)"),
        (b"\x05\x08\x01\x12\x01A", r"not a demonstration \(has no length at byte 33\)"),
        (b"\x02\x08\x07".ljust(40, b"\0"), "has format version 7; expected 0 or 1; record it again"),
    ],
)
def test_what_is_no_demonstration_is_refused(tmp_path, data, message):
    (tmp_path / "a.demo").write_bytes(data)
    with pytest.raises(StageError, match=r"a\.demo: .*" + message):
        DemoReader(tmp_path / "a.demo")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_never_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "a.demo"
    path.write_bytes(data)
    try:
        reader = DemoReader(path)
    except StageError:
        return
    list(reader)


@given(st.data())
def test_a_changed_byte_is_read_around_or_refused_and_never_anything_else(tmp_path_factory, data):
    path = unity_file(tmp_path_factory.mktemp("changed") / "a.demo", episode(3))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        reader = DemoReader(path)
    except StageError:
        return
    assert len(list(reader)) <= 4 or reader.meta.steps != 4


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(StageError, match=r"nowhere\.demo: can't read the demonstration: No such file"):
        DemoReader(tmp_path / "nowhere.demo")


LONG = "a name that is much too long for the header"


def test_a_long_name_that_the_description_was_written_over_is_tolerated(tmp_path):
    """Of a recording that was never closed."""
    pairs = episode(3)
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs, LONG, closed=False))
    assert list(reader) == pairs
    assert reader.brain == brain()


@pytest.mark.parametrize(
    "described",
    [
        brain("Ball Agent With A Name?team=0"),
        brain("A name as long as the other one?team=1", continuous=3, branches=(3, 2, 9)),
        brain("Another name of some length?team=1", continuous=0, branches=(2,)),
    ],
)
@pytest.mark.parametrize("name", ["seventeen letters and some", LONG])
def test_a_long_name_that_was_written_over_the_description_is_tolerated(tmp_path, described, name):
    """Of a recording that was closed: the description's end is still there, which has the actions."""
    pairs = episode(5)
    reader = DemoReader(unity_file(tmp_path / "a.demo", pairs, name, described=described))
    assert list(reader) == pairs
    assert reader.brain.action_spec == described.action_spec
    assert reader.meta.name == name


def test_a_description_of_which_nothing_is_left_is_refused(tmp_path):
    path = unity_file(tmp_path / "a.demo", episode(3), "x" * 90)
    with pytest.raises(StageError, match=r"not a demonstration \(its header does not fit the space"):
        DemoReader(path)


def written(path, pairs, name="Expert"):
    with DemoWriter(path, brain(), name) as writer:
        for each in pairs:
            writer.write(each.agent_info, each.action_info)
    return path


def test_what_is_written_lies_where_unity_looks_for_it(tmp_path):
    pairs = episode(2)
    data = written(tmp_path / "new" / "a.demo", pairs).read_bytes()
    meta = DemonstrationMetaProto(
        api_version=1, demonstration_name="Expert", number_steps=3, number_episodes=1, mean_reward=np.float32(0.01)
    )
    assert data[: data[0] + 1] == delimited(meta)
    assert data[BRAIN_AT:] == delimited(brain()) + b"".join(delimited(each) for each in pairs)


def test_while_it_is_recorded_the_header_says_no_steps(tmp_path):
    writer = DemoWriter(tmp_path / "a.demo", brain(), "Expert")
    for each in episode(2):
        writer.write(each.agent_info, each.action_info)
    writer._file.flush()
    reader = DemoReader(tmp_path / "a.demo")
    assert (reader.meta.steps, list(reader)) == (0, episode(2))
    writer.close()
    writer.close()
    assert DemoReader(tmp_path / "a.demo").meta.steps == 3
    with pytest.raises(ValueError, match=r"a\.demo: written to after close"):
        writer.write(episode(1)[0].agent_info, None)


def test_an_unfinished_episode_counts(tmp_path):
    meta = DemoReader(written(tmp_path / "a.demo", [*episode(4), pair([0.0]), pair([0.1], reward=0.5)])).meta
    assert (meta.steps, meta.episodes, meta.mean_reward) == (7, 2, pytest.approx((0.06 + 0.5) / 2))


@given(name=st.text(max_size=60), steps=st.integers(1, 2**31 - 1), episodes=st.integers(0, 2**31 - 2))
def test_a_name_that_does_not_fit_is_cut_and_the_description_stays_whole(tmp_path_factory, name, steps, episodes):
    path = tmp_path_factory.mktemp("names") / "a.demo"
    writer = DemoWriter(path, brain(), name)
    writer.write(episode(1)[0].agent_info, episode(1)[0].action_info)
    writer._steps, writer._episodes = steps, episodes
    writer.close()
    reader = DemoReader(path)
    assert reader.brain == brain()
    assert name.startswith(reader.meta.name)
    assert len(reader.meta.name) >= min(len(name), 2), "11 bytes always fit"
    assert reader.meta.steps == steps
    assert path.read_bytes()[0] < META_ROOM


def test_a_file_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "a.demo").write_bytes(b"mine")
    with pytest.raises(StageError, match=r"a\.demo: the file already exists; remove it"):
        DemoWriter(tmp_path / "a.demo", BrainParametersProto(), "Expert")
    assert (tmp_path / "a.demo").read_bytes() == b"mine"


@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_lengths_of_any_size_come_back(value, before):
    data = b"\x80" * before + varint(value) + b"rest"
    assert read_varint(data, before) == (value, len(data) - 4)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x7f"])
def test_what_is_no_length_is_refused(data):
    with pytest.raises(ValueError, match="has no length at byte 0"):
        read_varint(data, 0)


def test_pairs_hold_floats_to_the_last_bit(tmp_path):
    odd = [1e-45, float(np.float32(0.1)), -0.0, 3.4e38]
    found = next(iter(DemoReader(written(tmp_path / "a.demo", [pair(odd)]))))
    values = np.array(found.agent_info.observations[0].float_data.data, np.float32)
    assert values.tobytes() == np.array(odd, np.float32).tobytes()
