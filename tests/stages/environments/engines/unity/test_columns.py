"""A behaviour's agents in columns."""

from __future__ import annotations

import re

import numpy as np
import pytest
from unity_samples import PLAIN, VARIABLE, agent, brain, noise, numbers, picture, png

from headrace.stages.environments.engines.errors import GameBroken, GameRefused
from headrace.stages.environments.engines.unity.columns import BehaviorReader
from headrace.stages.environments.engines.unity.messages import GOAL_SIGNAL


def reader_of(first, *, continuous=2, branches=()):
    return BehaviorReader(brain(continuous=continuous, branches=branches), first, "Unity worker 3")


def broken(reader, infos) -> str:
    with pytest.raises(GameBroken) as caught:
        reader.read(infos)
    return str(caught.value)


def test_a_spec_follows_from_the_announcement_and_the_first_agent():
    first = agent(
        7,
        numbers(np.zeros((5, 3)), properties=(VARIABLE, PLAIN), name="Buffer"),
        picture(png(noise(6, 8, 3)), (3, 6, 8)),
        numbers([1, 2], name="Goal", kind=GOAL_SIGNAL),
    )
    spec = BehaviorReader(brain("Striker?team=1", continuous=2, branches=(3, 2)), first, "Unity worker 0").spec
    assert (spec.behavior_id, spec.name, spec.team, spec.grouped) == ("Striker?team=1", "Striker", 1, True)
    assert [(o.name, o.shape, o.dtype, o.kind, o.goal) for o in spec.observations] == [
        ("Buffer", (5, 3), "float32", "set", False),
        ("Camera", (3, 6, 8), "uint8", "image", False),
        ("Goal", (2,), "float32", "vector", True),
    ]
    assert (spec.actions.continuous_size, spec.actions.discrete_branches, spec.actions.masked) == (2, (3, 2), True)


def test_endings_come_first_and_each_part_keeps_its_order():
    infos = [
        agent(5, numbers([5]), reward=0.5),
        agent(9, numbers([9]), reward=0.9, done=True, interrupted=True),
        agent(9, numbers([9.5])),
        agent(2, numbers([2]), reward=0.2, done=True, group=4, group_reward=1.5),
        agent(1, numbers([1]), group=4),
    ]
    rows = reader_of(infos[0]).read(infos)
    assert (len(rows), rows.ended) == (5, 2)
    assert rows.ids.tolist() == [9, 2, 5, 9, 1]
    assert rows.interrupted.tolist() == [True, False]
    assert rows.rewards.tolist() == pytest.approx([0.9, 0.2, 0.5, 0, 0])
    assert rows.group_ids.tolist() == [0, 4, 0, 0, 4]
    assert rows.group_rewards.tolist() == [0, 1.5, 0, 0, 0]
    assert rows.observations[0].tolist() == [[9], [2], [5], [9.5], [1]]
    assert rows.action_masks is None


def test_agents_may_name_their_sensors_differently():
    infos = [agent(1, numbers([1, 2], name="Left")), agent(2, numbers([3, 4], name="Another"))]
    assert reader_of(infos[0]).read(infos).observations[0].tolist() == [[1, 2], [3, 4]]


def test_agents_of_a_behaviour_that_compress_their_images_differently_are_reported():
    pixels = noise(6, 8, 3)
    compressed = agent(1, picture(png(pixels), (3, 6, 8)))
    plain = agent(2, numbers(pixels.transpose(2, 0, 1) / 255, properties=(1, 2, 2)))
    for first, other in ((compressed, plain), (plain, compressed)):
        message = broken(reader_of(first), [first, other])
        assert f"agent {other.id}: observation" in message
        assert "is not compressed like that of the first agent" in message


def test_masks_state_what_is_allowed_and_no_mask_allows_everything():
    infos = [
        agent(1, numbers([1]), mask=(False, True, False, True, True)),
        agent(2, numbers([1])),
        agent(3, numbers([1]), done=True),
    ]
    rows = reader_of(infos[0], branches=(2, 3)).read(infos)
    assert rows.action_masks is not None
    assert rows.action_masks.tolist() == [[True, False, True, False, False], [True] * 5]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_reported_by_agent(value):
    reader = reader_of(agent(1, numbers([1])))
    message = broken(reader, [agent(1, numbers([1])), agent(8, numbers([1]), reward=value)])
    assert message.startswith(f"Unity worker 3, behaviour 'Crawler?team=0', agent 8: its reward is {value}")
    assert "its group reward is" in broken(reader, [agent(8, numbers([1]), group_reward=value)])


@pytest.mark.parametrize("name", ["Vector", "Another"])
def test_an_observation_that_is_not_finite_is_reported_by_agent_and_index(name):
    reader = reader_of(agent(1, numbers([1, 2])))
    message = broken(reader, [agent(4, numbers([1, 2])), agent(8, numbers([1, np.nan], name=name))])
    assert "agent 8: observation 'Vector' has nan at index 1" in message


def test_duplicate_agents_are_reported():
    reader = reader_of(agent(1, numbers([1])))
    deciding = [agent(1, numbers([1])), agent(6, numbers([1])), agent(6, numbers([2]))]
    assert "agent 6: requests a decision 2 times in one step" in broken(reader, deciding)
    ending = [agent(6, numbers([1]), done=True), agent(6, numbers([1]), done=True)]
    assert "agent 6: ended 2 times in one step" in broken(reader, ending)


@pytest.mark.parametrize(("branches", "width"), [((2, 3), 5), ((), 0)])
def test_a_mask_of_the_wrong_length_is_reported(branches, width):
    reader = reader_of(agent(1, numbers([1])), branches=branches)
    message = broken(reader, [agent(1, numbers([1])), agent(4, numbers([1]), mask=(True, False))])
    assert f"agent 4: its action mask has 2 entries; expected {width}: one for each choice" in message


def test_a_mask_that_leaves_no_choice_is_reported():
    reader = reader_of(agent(1, numbers([1])), branches=(2, 3))
    message = broken(reader, [agent(4, numbers([1]), mask=(False, False, True, True, True))])
    assert (
        "agent 4: its action mask forbids all 3 choices of branch 1; expected at least one choice that it does not "
        "forbid" in message
    )


def test_another_number_of_observations_is_reported():
    reader = reader_of(agent(1, numbers([1], name="Rays")))
    message = broken(reader, [agent(1, numbers([1])), agent(4, numbers([1]), numbers([2]))])
    assert "agent 4 has 2 observations; expected 1" in message
    assert "(Rays)" in message


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        (numbers([1, 2, 3]), "has shape (3,); expected (2,)"),
        (numbers([1, 2, 3], shape=(2,)), "has 3 numbers; expected 2 (shape (2,))"),
    ],
)
def test_an_observation_of_another_shape_is_reported(odd, problem):
    reader = reader_of(agent(1, numbers([1, 2])))
    message = broken(reader, [agent(1, numbers([1, 2])), agent(4, odd)])
    assert f"agent 4: observation 'Vector' {problem}" in message


def test_a_picture_that_can_not_be_decoded_is_reported():
    good = agent(1, picture(png(noise(6, 8, 3)), (3, 6, 8)))
    reader = reader_of(good)
    message = broken(reader, [good, agent(4, picture(b"JFIF", (3, 6, 8)))])
    assert "Unity worker 3, behaviour 'Crawler?team=0', agent 4: observation 'Camera' has no PNG signature" in message
    assert "agent 4: observation 'Camera' has shape (1, 6, 8)" in broken(
        reader, [agent(4, picture(png(noise(6, 8, 3)), (1, 6, 8)))]
    )


def test_large_pictures_are_each_decoded_to_the_row_of_their_agent():
    pictures = [noise(70, 80, 3, seed=seed) for seed in range(9)]
    agents = [agent(number, picture(png(pixels), (3, 70, 80))) for number, pixels in enumerate(pictures)]
    reader = reader_of(agents[0])
    np.testing.assert_array_equal(reader.read(agents).observations[0], np.stack(pictures).transpose(0, 3, 1, 2))
    agents[5] = agent(5, picture(b"JFIF", (3, 70, 80)))
    agents[3] = agent(3, picture(b"JFIF", (3, 70, 80)))
    assert "agent 3: observation 'Camera' has no PNG signature" in broken(reader, agents)


@pytest.mark.parametrize(
    ("shape", "properties", "words"),
    [
        ((3,), (VARIABLE,), "variable size"),
        ((3, 4), (1, 4), "none | variable size"),
        ((3, 4), (6, 1), "translational equivariance and variable size | none"),
        ((3,), (1, 1), "none | none"),
    ],
)
def test_unsupported_dimension_properties_are_refused(shape, properties, words):
    first = agent(7, numbers(np.zeros(shape), properties=properties, name="Odd"))
    with pytest.raises(GameRefused, match=re.escape(f"'Odd' of shape {shape} has the dimension properties ({words})")):
        reader_of(first)


def test_a_compressed_observation_that_is_not_an_image_is_refused():
    first = agent(7, picture(png(noise(2, 2, 3)), (12,), properties=(PLAIN,)))
    with pytest.raises(GameRefused, match=r"agent 7: observation 'Camera' of shape \(12,\) is compressed to PNG"):
        reader_of(first)
