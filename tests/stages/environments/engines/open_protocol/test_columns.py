"""States of games as columns: numbers as lists, as bytes and as base64; what does not fit is named by agent and place."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.open_protocol.messages import actions_part, read_rows

SPEC = BehaviorSpec("Ball", (ObservationSpec("place", (2,)),), ActionSpec(1, (2, 3), masked=True), grouped=True)
PICTURE = BehaviorSpec("Eye", (ObservationSpec("camera", (2, 2, 1), "uint8", channels_last=True),), ActionSpec(1))


def deciding(**columns):
    return {"deciding": {"ids": [4, 9], "observations": [[[1, 2], [3, 4.5]]], **columns}}


def test_ended_agents_come_first():
    ended = {"ids": [7], "observations": [[[5, 6]]], "rewards": [1.5], "truncated": [True]}
    rows = read_rows(SPEC, {**deciding(rewards=[0.25, -1]), "ended": ended})
    assert rows.ids.tolist() == [7, 4, 9]
    assert rows.ended == 1
    assert rows.interrupted.tolist() == [True]
    assert rows.rewards.tolist() == [1.5, 0.25, -1]
    assert rows.observations[0].tolist() == [[5, 6], [1, 2], [3, 4.5]]


def test_missing_columns_are_zero_and_missing_masks_allow_everything():
    rows = read_rows(SPEC, deciding())
    assert rows.rewards.tolist() == rows.group_rewards.tolist() == rows.group_ids.tolist() == [0, 0]
    assert rows.action_masks.all()
    assert len(read_rows(SPEC, {})) == 0


def test_whole_numbers_may_be_written_as_floats():
    assert read_rows(SPEC, deciding(ids=[4.0, 9.0], groups=[1.0, 2.0])).ids.tolist() == [4, 9]


def test_masks_groups_and_their_rewards_are_read():
    rows = read_rows(SPEC, deciding(masks=[[1, 0, 0, 1, 1], [0, 1, 1, 0, 0]], groups=[1, 2], group_rewards=[0.5, 0.75]))
    assert rows.action_masks.astype(int).tolist() == [[1, 0, 0, 1, 1], [0, 1, 1, 0, 0]]
    assert rows.group_ids.tolist() == [1, 2]
    assert rows.group_rewards.tolist() == [0.5, 0.75]


@pytest.mark.parametrize("as_text", [False, True])
def test_columns_may_be_bytes(as_text):
    def written(array):
        content = array.tobytes()
        return base64.b64encode(content).decode() if as_text else content

    places = np.array([[1, 2], [3, 4.5]], "<f4")
    rows = read_rows(SPEC, deciding(observations=[written(places)], rewards=written(np.array([1, 2], "<f4"))))
    assert (rows.observations[0] == places).all()
    assert rows.rewards.tolist() == [1, 2]
    ids, flags = written(np.array([4, 9], "<i4")), written(np.array([1, 0], np.uint8))
    masks = written(np.ones((2, 5), np.uint8))
    rows = read_rows(SPEC, {"ended": {"ids": ids, "observations": [written(places)], "truncated": flags}})
    assert rows.ids.tolist() == [4, 9]
    assert rows.interrupted.tolist() == [True, False]
    rows = read_rows(SPEC, deciding(masks=masks, groups=written(np.array([1, 2], "<i4"))))
    assert rows.action_masks.all()
    assert rows.group_ids.tolist() == [1, 2]
    pixels = np.arange(8, dtype=np.uint8)
    rows = read_rows(PICTURE, {"deciding": {"ids": [1, 2], "observations": [written(pixels)]}})
    assert rows.observations[0].shape == (2, 2, 2, 1)
    assert rows.observations[0].dtype == np.uint8


def test_actions_are_written_by_agent():
    batch = ActionBatch(np.array([[0.5], [-1]], np.float32), np.array([[1, 2], [0, 0]], np.int32))
    assert actions_part(np.array([4, 9], np.int32), batch) == {
        "ids": [4, 9],
        "continuous": [[0.5], [-1.0]],
        "discrete": [[1, 2], [0, 0]],
    }


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (deciding(ids=[4, 4]), "sent agent 4 twice in agents.Ball.deciding.ids"),
        (deciding(ids=[4, -1]), "ids: expected a list of whole numbers from 0"),
        (deciding(ids=None), "ids: expected a list of whole numbers from 0"),
        (deciding(observations=[[[1, 2]]]), r"sent 1 entry as .*\('place'\): expected one for each of 2 agents"),
        (deciding(observations=[[[1], [2]]]), "sent 2 numbers as .*expected 4 in total, 2 for each of 2 agents"),
        (deciding(observations=[[[1, 2], [3]]]), "sent 1 number as .* for agent 9 of Ball; expected 2"),
        (deciding(observations=[[[1, None], [3, 4]]]), r"null at index 1 of observations\[0\] .* for agent 4 of Ball"),
        (deciding(observations=[[[1, 2], [3, float("nan")]]]), "sent nan at index 1 of .* for agent 9 of Ball"),
        (deciding(rewards=[1, None]), "sent null at index 0 of rewards for agent 9 of Ball"),
        (deciding(reward=[1, 2]), "sent reward in agents.Ball.deciding: expected only the keys"),
        (
            deciding(masks=[[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
            "a mask for agent 9 of Ball that forbids all 3 choices of branch 1; expected at least one",
        ),
        (
            deciding(masks=[[1, 1, 1, 1, 2]] * 2),
            "a mask for agent 4 of Ball that has 2 at index 4; expected 1 for each",
        ),
        (deciding(groups=[0.5, 1]), "sent 0.5 at index 0 of groups for agent 4 of Ball; expected whole numbers from 0"),
        ({"decide": {}}, "expected a map with 'deciding', 'ended' or both"),
    ],
)
def test_invalid_columns_are_named(part, words):
    with pytest.raises(MessageError, match=words):
        read_rows(SPEC, part)


def test_bytes_of_pictures_are_from_0_to_255():
    with pytest.raises(
        MessageError, match="sent 256 at index 3 of .* for agent 1 of Eye; expected whole numbers from 0 to 255"
    ):
        read_rows(PICTURE, {"deciding": {"ids": [1], "observations": [[[0, 0, 0, 256]]]}})


def test_groups_and_masks_have_to_be_announced():
    with pytest.raises(MessageError, match="announce it with 'grouped': true"):
        read_rows(PICTURE, {"deciding": {"ids": [1], "observations": [[[0, 0, 0, 0]]], "groups": [1]}})
    plain = BehaviorSpec("Ball", SPEC.observations, ActionSpec(0, (2,)))
    with pytest.raises(MessageError, match="actions with 'masked': true"):
        read_rows(plain, deciding(masks=[[1, 1], [1, 1]]))
