"""Several Unity programs as one group: who answers comes with the tick, and who breaks is begun anew alone."""

from __future__ import annotations

import asyncio

import pytest
from fake_unity import WALKER, FakeUnity, World, asks, ends, first, says, walking

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.errors import EnvironmentEnded, StageError

ONE = 2**32
"""First agent id of the second instance."""


def told(order):
    """The continuous actions of an order to one behaviour."""
    return [list(action.continuous_actions) for action in order[WALKER].value]


async def test_a_reset_starts_all_and_waits_for_all():
    world = World(walking(0, 1), walking(0))
    result = await world.reset()
    steps = result.steps[WALKER]
    assert steps.agent_ids.tolist() == [0, 1, ONE]
    assert steps.env_ids.tolist() == [0, 0, 1]
    assert [each[0].orders for each in world.unities] == [["reset"], ["reset"]]
    assert world.group.behavior_specs[WALKER].actions.continuous_size == 1
    await world.group.close()


async def test_games_step_independently():
    world = World(walking(0), walking(0))
    await world.reset()
    slow, quick = world.unities[0][0], world.unities[1][0]
    slow.may_answer.clear()
    for step in (1, 2, 3):
        steps = (await world.step()).steps[WALKER]
        assert (steps.agent_ids.tolist(), steps.observations[0].tolist()) == ([ONE], [[step]])
    assert (len(slow.orders), len(quick.orders)) == (2, 4)
    slow.may_answer.set()
    quick.may_answer.clear()
    steps = (await world.step()).steps[WALKER]
    assert (steps.agent_ids.tolist(), steps.observations[0].tolist()) == ([0], [[1]])
    await world.group.close()


async def test_in_step_a_tick_contains_all_games():
    world = World(walking(0), walking(0), in_step=True)
    await world.reset()
    slow = world.unities[0][0]
    slow.may_answer.clear()
    waiting = asyncio.create_task(world.step())
    await asyncio.sleep(0)
    slow.may_answer.set()
    assert (await waiting).steps[WALKER].agent_ids.tolist() == [0, ONE]
    await world.group.close()


async def test_actions_go_to_agents_in_the_order_of_their_requests():
    world = World(
        [first(asks(4, 0.4), asks(2, 0.2)), says(ends(9), asks(2, 0.25), asks(4, 0.45)), says(asks(4))],
        [first(asks(7, 0.7)), says(asks(7, 0.75)), says(asks(7))],
        in_step=True,
    )
    await world.reset()
    await world.step()
    await world.step()
    assert [told(order) for order in world.unities[0][0].orders[1:]] == [
        [[pytest.approx(0.4)], [pytest.approx(0.2)]],
        [[pytest.approx(0.25)], [pytest.approx(0.45)]],
    ]
    assert [told(order) for order in world.unities[1][0].orders[1:]] == [
        [[pytest.approx(0.7)]],
        [[pytest.approx(0.75)]],
    ]
    await world.group.close()


async def test_endings_of_all_instances_come_before_decisions():
    world = World(
        [first(asks(0), asks(1)), says(ends(0, 5, reward=2.0, interrupted=True), asks(0, 6, reward=9.0), asks(1, 7))],
        [first(asks(0)), says(ends(0, 8, reward=3.0))],
        in_step=True,
    )
    await world.reset()
    steps = (await world.step()).steps[WALKER]
    assert steps.ended == 2
    assert steps.agent_ids.tolist() == [0, ONE, 0, 1]
    assert steps.env_ids.tolist() == [0, 1, 0, 0]
    assert steps.observations[0][:, 0].tolist() == [5, 8, 6, 7]
    assert (steps.terminated.tolist(), steps.truncated.tolist()) == ([False, True], [True, False])
    assert steps.rewards.tolist() == [2, 3, 0, 0], "what begins an episode has no reward"
    episodes = steps.episode_ids.tolist()
    assert episodes[2] > episodes[0]
    await world.group.close()


async def test_a_message_with_only_endings_is_passed_on_and_answered():
    world = World([first(asks(0)), says(ends(0, reward=1.0)), says(asks(3))])
    await world.reset()
    steps = (await world.step()).steps[WALKER]
    assert (steps.ended, len(steps.agent_ids)) == (1, 1)
    await asyncio.sleep(0)
    assert world.unities[0][0].orders[2] == {}
    world.result = await world.group.step({})
    assert world.result.steps[WALKER].agent_ids.tolist() == [3]
    await world.group.close()


async def test_a_message_without_agents_is_answered_and_not_passed_on():
    world = World([first(asks(0)), says(), says(), says(asks(0, 1))])
    await world.reset()
    assert (await world.step()).steps[WALKER].agent_ids.tolist() == [0]
    assert world.unities[0][0].orders[2:] == [{}, {}]
    await world.group.close()


async def test_behaviours_may_come_at_any_step():
    world = World([first(asks(0)), first(asks(0), behavior="Flyer?team=1", continuous=3)])
    await world.reset()
    assert [*world.group.behavior_specs] == [WALKER]
    assert [*(await world.step()).steps] == ["Flyer?team=1"]
    assert world.group.behavior_specs["Flyer?team=1"].actions.continuous_size == 3
    await world.group.close()


async def test_programs_of_different_scenes_are_refused():
    world = World([first(asks(0))], [first(asks(0), continuous=2)])
    with pytest.raises(StageError, match=r"Unity worker 1: behaviour 'Walker\?team=0' has .* but Unity worker 0 has"):
        await world.reset()
    await world.group.close()


async def test_group_ids_differ_between_instances():
    script = [first(asks(0, group=5), asks(1)), says(asks(0, group=5, group_reward=2.0), asks(1, reward=1.0))]
    world = World(script, script, in_step=True)
    await world.reset()
    steps = (await world.step()).steps[WALKER]
    assert steps.group_ids.tolist() == [5, 0, ONE + 5, 0]
    assert steps.group_rewards.tolist() == [2, 0, 2, 0]
    await world.group.close()


async def test_a_reset_starts_new_episodes_without_endings():
    world = World([first(asks(0)), says(asks(0, reward=1.0)), says(asks(0, reward=5.0)), says(asks(0, reward=1.0))])
    await world.reset()
    before = (await world.step()).steps[WALKER].episode_ids[0]
    steps = (await world.reset()).steps[WALKER]
    assert steps.episode_ids[0] > before
    assert steps.rewards.tolist() == [0]
    assert (await world.step()).steps[WALKER].rewards.tolist() == [1]
    assert world.unities[0][0].orders.count("reset") == 2
    await world.group.close()


async def test_a_reset_waits_for_steps_in_flight():
    world = World(walking(0), walking(0))
    await world.reset()
    slow = world.unities[0][0]
    slow.may_answer.clear()
    await world.step()
    resetting = asyncio.create_task(world.reset())
    for _ in range(5):
        await asyncio.sleep(0)
    assert slow.orders[-1] != "reset"
    slow.may_answer.set()
    assert (await resetting).steps[WALKER].agent_ids.tolist() == [0, ONE]
    assert slow.orders[-1] == "reset"
    await world.group.close()


# What breaks. --------------------------------------------------------------------------------------------------------


async def test_a_broken_game_is_restarted_alone_and_reported_as_lost(caplog):
    broken = FakeUnity([first(asks(0)), GameBroken("Unity worker 0 ended with signal SIGKILL")])
    world = World([broken, FakeUnity(walking(0))], walking(0))
    before = (await world.reset()).steps[WALKER].episode_ids[0]
    result = await world.step()
    assert result.lost.tolist() == [0]
    assert result.steps[WALKER].agent_ids.tolist() == [ONE]
    while 0 not in (result := await world.step()).steps[WALKER].agent_ids:
        assert result.lost is None
    assert broken.closed == 1
    assert world.unities[0][1].orders[0] == "reset"
    assert len(world.unities[1]) == 1, "the other goes on as it was"
    steps = result.steps[WALKER]
    assert steps.episode_ids[0] > before
    assert steps.rewards[0] == 0
    assert "Restarting Unity worker 0 (restart 1); the others continue." in caplog.text
    await world.group.close()


async def test_too_many_restarts_end_the_run_with_the_reason():
    def broken():
        return FakeUnity([first(asks(0)), GameBroken("Unity worker 0 ended with return code 3")])

    world = World([broken(), broken()], lifetime=1)
    await world.reset()
    await world.step()
    await world.step()
    with pytest.raises(StageError, match="(?s)return code 3.*not restarted again.*max_lifetime_restarts is 1"):
        await world.step()
    await world.group.close()


async def test_each_instance_has_its_own_restarts():
    def broken():
        return FakeUnity([first(asks(0)), GameBroken("gone")])

    world = World([broken(), FakeUnity(walking(0))], [broken(), FakeUnity(walking(0))], lifetime=1, in_step=True)
    await world.reset()
    assert (await world.step()).lost.tolist() == [0, 1]
    assert len((await world.step()).steps[WALKER].agent_ids) == 2
    await world.group.close()


async def test_a_game_that_breaks_at_its_start_is_restarted_within_the_reset():
    world = World([FakeUnity([], GameBroken("gone")), FakeUnity(walking(0))], walking(0))
    assert (await world.reset()).steps[WALKER].agent_ids.tolist() == [0, ONE]
    await world.group.close()


async def test_a_refused_game_is_not_restarted():
    world = World([FakeUnity([], GameRefused("version 2.0.0 is not spoken here"))], lifetime=9)
    with pytest.raises(GameRefused, match="not spoken here"):
        await world.reset()
    await world.group.close()


# Closing in order. ---------------------------------------------------------------------------------------------------


def closing(after=1):
    """A program that closes in order after some messages."""
    messages = [first(asks(0)), *(says(asks(0)) for _ in range(after - 1))]
    return [*messages, GameEnded(f"it has quit after {after}")]


async def test_a_closed_game_is_left_out_and_the_last_one_ends_the_run(caplog):
    caplog.set_level("INFO")
    world = World(closing(1), closing(3))
    await world.reset()
    result = await world.step()
    assert (result.closed.tolist(), result.lost) == ([0], None)
    steps = [*result.steps.values()] or [*(await world.step()).steps.values()]
    assert steps[0].agent_ids.tolist() == [ONE]
    await asyncio.sleep(0)
    assert [each[0].closed for each in world.unities] == [1, 0], "its program is released at once"
    assert "it has quit after 1. The others continue." in caplog.text
    with pytest.raises(EnvironmentEnded, match="it has quit after 3"):
        while True:
            await world.step()
    await world.group.close()


@pytest.mark.parametrize("in_step", [False, True])
async def test_all_games_may_close_simultaneously(in_step):
    world = World(closing(1), closing(1), in_step=in_step)
    await world.reset()
    with pytest.raises(EnvironmentEnded, match="it has quit after 1"):
        while True:
            await world.step()
    await world.group.close()


async def test_a_reset_skips_and_names_closed_games():
    world = World(closing(1), walking(0))
    await world.reset()
    await world.step()
    result = await world.reset()
    assert (result.steps[WALKER].agent_ids.tolist(), result.closed.tolist()) == ([ONE], [0])
    await world.group.close()


async def test_on_close_restart_restarts_a_closed_game_within_the_limits(caplog):
    caplog.set_level("INFO")
    world = World([FakeUnity(closing(1)), FakeUnity(closing(2))], walking(0), on_close="restart")
    await world.reset()
    results = [await world.step() for _ in range(8)]
    assert [each.lost.tolist() for each in results if each.lost is not None] == [[0]]
    assert [each.closed.tolist() for each in results if each.closed is not None] == [[0]]
    assert "it has quit after 1: restarting it (restart 1), because env_settings.on_close is restart." in caplog.text
    assert "it has quit after 2, and is not restarted again: it was restarted once (env_settings." in caplog.text
    await world.group.close()


async def test_stop_in_the_editor_ends_the_run():
    world = World([FakeUnity([first(asks(0)), GameEnded("the Unity Editor has closed the connection")])], editor=True)
    await world.reset()
    with pytest.raises(EnvironmentEnded, match="the Unity Editor has closed"):
        await world.step()
    await world.group.close()


async def test_on_close_restart_waits_for_the_editor_after_every_stop():
    visits = [FakeUnity(closing(1)) for _ in range(4)]
    world = World([*visits, FakeUnity(walking(0))], editor=True, on_close="restart")
    await world.reset()
    results = [await world.step() for _ in range(8)]
    assert [each.lost.tolist() for each in results if each.lost is not None] == [[0]] * 4
    await world.group.close()


# The Editor. ---------------------------------------------------------------------------------------------------------


async def test_an_editor_that_never_connected_ends_the_run():
    world = World([FakeUnity([], GameBroken("nobody pressed Play"))], editor=True)
    with pytest.raises(StageError, match="^nobody pressed Play$"):
        await world.reset()
    await world.group.close()


async def test_an_editor_that_hung_can_reconnect():
    world = World([FakeUnity([first(asks(0)), GameBroken("hangs")]), FakeUnity(walking(0))], editor=True)
    await world.reset()
    assert (await world.step()).lost.tolist() == [0]
    assert (await world.step()).steps[WALKER].agent_ids.tolist() == [0]
    await world.group.close()


# Closing. ------------------------------------------------------------------------------------------------------------


async def test_close_ends_all_games_once_even_during_a_step():
    world = World(walking(0), walking(0))
    await world.reset()
    world.unities[0][0].may_answer.clear()
    await world.step()
    await world.group.close()
    await world.group.close()
    assert [each[0].closed for each in world.unities] == [1, 1]


@pytest.mark.virtual_time
@pytest.mark.parametrize("in_step", [False, True])
async def test_a_hanging_game_does_not_delay_the_end_of_a_run(in_step):
    world = World(walking(0), walking(0), in_step=in_step)
    await world.reset()
    for each in world.unities:
        each[0].may_answer.clear()
    stepping = asyncio.create_task(world.step())
    await asyncio.sleep(0.5)
    world.group.request_stop()
    with pytest.raises(EnvironmentEnded, match="Unity worker 0.* had not finished its step when the run had to end"):
        await stepping
    await world.group.close()


@pytest.mark.virtual_time
async def test_the_end_of_a_run_waits_for_a_game_that_answers():
    world = World(walking(0))
    await world.reset()
    world.unities[0][0].may_answer.clear()
    stepping = asyncio.create_task(world.step())
    await asyncio.sleep(0.5)
    world.group.request_stop()
    await asyncio.sleep(0.5)
    world.unities[0][0].may_answer.set()
    assert (await stepping).steps[WALKER].agent_ids.tolist() == [0]
    await world.group.close()


async def test_a_game_that_fails_to_close_does_not_affect_the_others():
    class Stubborn(FakeUnity):
        async def close(self, patience_s=None):
            raise GameBroken("no")

    world = World(Stubborn(walking(0)), walking(0))
    await world.reset()
    await world.group.close()
    assert world.unities[1][0].closed == 1
