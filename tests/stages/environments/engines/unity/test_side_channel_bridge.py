"""Parameters that are sent to Unity beside orders, as the stand-in client receives them, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest
from fake_unity import WALKER, FakeUnity, World, asks, ends, first, says, walking
from unity_client import channels as client

from headrace.config import EngineSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues
from headrace.stages.errors import StageError

UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 2}}


def hears(data):
    heard = client.Channels()
    heard.receive(data)
    return heard


def given(generation=1, **parameters):
    made = EpisodeParameters()
    made.receive(EnvironmentParameters(generation, parameters))
    return made


def statistics(*told):
    speaking = client.Channels()
    for name, value, aggregation in told:
        speaking.tell_statistic(name, value, aggregation)
    return speaking.outgoing()


async def test_engine_settings_and_parameters_are_sent_with_the_first_request():
    world = World(walking(0), engine=EngineSettings(width=100, height=50, time_scale=3.0))
    world.group.set_parameters(given(gravity=9.5, size=UNIFORM))
    await world.reset()
    heard = hears(world.unities[0][0].sent[0])
    assert heard.engine == {
        "screen": [100, 50],
        "quality_level": [5],
        "time_scale": [3.0],
        "target_frame_rate": [-1],
        "capture_frame_rate": [60],
    }
    assert heard.parameters["gravity"] == 9.5
    assert heard.parameters["size"] | {"seed": 0} == {"sampler": "uniform", "seed": 0, "numbers": [1.0, 2.0]}
    await world.step()
    assert world.unities[0][0].sent[1] == b""
    await world.group.close()


async def test_only_changes_are_sent_with_the_next_request():
    world = World(walking(0))
    parameters = given(gravity=9.5, size=UNIFORM)
    world.group.set_parameters(parameters)
    await world.reset()
    parameters.receive(EnvironmentParameters(2, {"gravity": 3.0, "size": UNIFORM}))
    await world.step()
    heard = hears(world.unities[0][0].sent[1])
    assert (heard.parameters, heard.engine) == ({"gravity": 3.0}, {})
    await world.group.close()


async def test_a_restarted_game_gets_all_settings_again():
    world = World([FakeUnity([first(asks(0)), GameBroken("gone")]), FakeUnity(walking(0))])
    world.group.set_parameters(given(gravity=9.5))
    await world.reset()
    await world.step()
    await world.step()
    heard = hears(world.unities[0][1].sent[0])
    assert heard.parameters == {"gravity": 9.5}
    assert heard.engine
    await world.group.close()


async def test_an_ending_names_the_parameters_at_the_start_of_its_episode():
    script = [first(asks(0), asks(1)), says(ends(0), asks(0), asks(1)), says(ends(0), ends(1), asks(0), asks(1))]
    world = World(script)
    parameters = given(generation=1, gravity=9.5)
    world.group.set_parameters(parameters)
    await world.reset()
    parameters.receive(EnvironmentParameters(2, {"gravity": 3.0}))
    assert (await world.step()).steps[WALKER].parameters.tolist() == [1]
    assert (await world.step()).steps[WALKER].parameters.tolist() == [2, 1]
    await world.group.close()


def seed_told(worker_id, parameters, run_seed=7, name="size"):
    bridge = SideChannelBridge(EngineSettings(), parameters, worker_id, run_seed)
    return hears(bridge.outgoing()).parameters[name]["seed"]


def test_samplers_without_a_seed_get_different_seeds_from_the_run():
    parameters = given(size=UNIFORM, gravity=UNIFORM)
    seeds = {
        seed_told(worker, parameters, run, name) for worker in (0, 1) for run in (7, 8) for name in ("size", "gravity")
    }
    assert len(seeds) == 8
    assert seed_told(0, parameters) == seed_told(0, parameters)


def test_a_sampler_keeps_the_seed_that_it_was_given():
    own = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 2, "seed": 41}}
    assert seed_told(1, given(size=own)) == 41


async def test_statistics_come_with_the_tick_and_their_aggregation():
    heard = statistics(
        ("Goals", 1.0, client.SUM),
        ("Goals", 2.0, client.SUM),
        ("Height", 3.0, client.AVERAGE),
        ("Last", 4.0, client.MOST_RECENT),
        ("Spread", 5.0, client.HISTOGRAM),
    )
    world = World(
        [first(asks(0)), says(asks(0), side_channel=heard)],
        [first(asks(0)), says(asks(0), side_channel=heard)],
        in_step=True,
    )
    await world.reset()
    found = (await world.step()).statistics
    assert found == {
        "Goals": StatisticValues((1.0, 2.0, 1.0, 2.0), "sum"),
        "Height": StatisticValues((3.0, 3.0), "mean"),
        "Last": StatisticValues((4.0,), "last"),
        "Spread": StatisticValues((5.0, 5.0), "histogram"),
    }, "of the newest value, only the first program's counts"
    await world.group.close()


async def test_statistics_of_messages_without_agents_are_kept():
    world = World([first(asks(0)), says(side_channel=statistics(("Goals", 1.0, client.SUM))), says(asks(0))])
    await world.reset()
    assert (await world.step()).statistics == {"Goals": StatisticValues((1.0,), "sum")}
    await world.group.close()


async def test_a_behaviour_that_was_never_announced_is_an_error():
    world = World([says(asks(0), behavior="Stranger?team=0")], lifetime=0)
    with pytest.raises(
        StageError, match=r"Unity worker 0 sends agents of a behaviour 'Stranger\?team=0' .* not announced"
    ):
        await world.reset()
    await world.group.close()


async def test_masks_have_a_row_for_each_deciding_agent():
    world = World(
        [
            first(asks(0, mask=[True, False]), asks(1), branches=(2,)),
            says(ends(0), asks(0), asks(1, mask=[False, True])),
        ]
    )
    assert (await world.reset()).steps[WALKER].action_masks.tolist() == [[False, True], [True, True]]

    def choose(steps):
        return ActionBatch(np.zeros((2, 1), np.float32), np.array([[1], [0]], np.int32))

    assert (await world.step(choose)).steps[WALKER].action_masks.tolist() == [[True, True], [True, False]]
    order = world.unities[0][0].orders[1][WALKER].value
    assert [list(action.discrete_actions) for action in order] == [[1], [0]]
    await world.group.close()
