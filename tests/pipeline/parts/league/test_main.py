"""Main's side of a league: policies are written in a thread, in order, and no reset is lost, whatever is resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from league_world import FIRST, LEARNERS, OTHER, World, played
from properties import examples
from virtual_time import VirtualTimeLoop, until_blocked

from headrace.pipeline.control import BeginAnew
from headrace.pipeline.run_folder.checkpoint import pack_state, unpack_state
from headrace.stages.errors import StageError
from headrace.stages.trainer.stage import Takeover


async def test_a_learner_that_is_started_again_hears_of_its_reset_whatever_policies_came_meanwhile(tmp_path):
    world = World(tmp_path)
    for behavior, step in ((FIRST, 0), (OTHER, 0), (OTHER, 100)):
        world.policy(behavior, step)
        await world.part.finish()
    world.policy(OTHER, 110)  # of the trainer before, or of a lost learner's successor
    world.part.learner_ready(OTHER)
    world.part.learner_ready(FIRST)
    assert world.told == {FIRST: [], OTHER: [BeginAnew(100, None)] * 2}
    world.checkpoint(1)
    resumed = World(tmp_path, world.saved[1])
    resumed.part.learner_ready(OTHER)
    assert resumed.told[OTHER] == [BeginAnew(100, None)]
    resumed.policy(OTHER, 110)
    resumed.policy(OTHER, 230)
    await resumed.part.finish()
    assert resumed.told[OTHER][1:] == [BeginAnew(230, None)]


# A disk whose answers the test decides about, in virtual time. --------------------------------------------------------


class Disk:
    """Writes what it is asked to when the test says so; until then it hangs."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []
        loop: Any = asyncio.get_running_loop()
        loop.run_in_executor = self._ask

    def _ask(self, _: object, call: Any, *arguments: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, lambda: call(*arguments)))
        return answer

    async def answer(self) -> bool:
        """Do the oldest thing that was asked; returns False if there is none."""
        await until_blocked()
        if not self._waiting:
            return False
        answer, call = self._waiting.pop(0)
        found = call()
        if not answer.cancelled():
            answer.set_result(found)
        await until_blocked()
        return True

    async def answer_all(self) -> None:
        while await self.answer():
            pass


@pytest.mark.virtual_time
async def test_a_disk_that_is_slow_is_awaited_until_it_answers(tmp_path):
    world, disk = World(tmp_path, learners={"main": {"freeze": {"at_most": 100}}, "exploiter": {}}), Disk()
    world.policy(FIRST, 0)
    world.policy(OTHER, 0)
    ended = asyncio.ensure_future(world.part.finish())
    for members in (1, 2):
        await asyncio.sleep(50)
        assert not ended.done()
        await disk.answer()
        assert len(world.members) == members
    await ended


# What a resumed run knows. --------------------------------------------------------------------------------------------

STEPS = st.integers(1, 90)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([FIRST, OTHER]), STEPS),
        st.tuples(st.just("games"), st.integers(0, 5)),
        st.just(("disk",)),
    ),
    max_size=14,
)
RANDOM_RESETS = {**LEARNERS, "exploiter": {**LEARNERS["exploiter"], "reset": {"probability": 0.5, "to": "main"}}}


async def drive(world: World, disk: Disk, events: list[Any], at: dict[str, int]) -> None:
    for what, *more in events:
        match what:
            case "disk":
                await disk.answer()
            case "games":
                world.part.games_ended(OTHER, played(*more))
            case _:
                at[what] += more[0]
                world.policy(what, at[what])


@given(EVENTS, EVENTS)
@examples(6)
def test_a_checkpoint_has_the_state_of_its_cut_whatever_comes_before_the_disk_has_answered(
    tmp_path_factory, before, after
):
    folders, told = [tmp_path_factory.mktemp(name) for name in ("run", "ended")], []

    async def whole() -> None:
        states, at = [], {FIRST: 0, OTHER: 0}
        for folder, then in zip(folders, (after, []), strict=True):
            disk, world, now = Disk(), World(folder, learners=RANDOM_RESETS), dict(at)
            for name in (FIRST, OTHER):
                world.policy(name, 0)
            await drive(world, disk, before, now)
            world.checkpoint(1)
            told.append(len(world.told[OTHER]))
            await drive(world, disk, then, now)
            await disk.answer_all()
            told.append(len(world.told[OTHER]))
            world.part.checkpoint_ended()
            states += [world.saved[1], world.part._state()]
        assert told[0] == told[1], "a learner could save its part after such a reset"
        resumed, disk = World(folders[0], unpack_state(pack_state(states[0])), RANDOM_RESETS), Disk()
        await disk.answer_all()
        assert pack_state(resumed.part._state()) == pack_state(states[3])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(whole())


async def learned_until(world: World, step: int, learner: Takeover) -> bool:
    """The exploiter has a policy of this step; returns whether it then restarts."""
    before = len(world.told[OTHER])
    world.policy(OTHER, step)
    await until_blocked()
    for reset in world.told[OTHER][before:]:
        learner.want(reset.number, reset.weights)
    restarts = learner.wanted
    if restarts:  # as a checkpoint has it after the restart
        learner.load_state_dict({"begun_anew": learner.state_dict()["begun_anew"]})
    return restarts


@pytest.mark.virtual_time
@pytest.mark.parametrize("older", ["main", "learner"])
async def test_a_learner_follows_the_next_reset_whether_its_state_or_mains_is_the_older_one(tmp_path, older):
    world, learner = World(tmp_path), Takeover(None)
    world.policy(FIRST, 0)
    assert not await learned_until(world, 0, learner)
    world.checkpoint(1)
    world.part.checkpoint_ended()
    assert [await learned_until(world, step, learner) for step in (100, 150, 200)] == [True, False, True]
    world.checkpoint(2)
    if older == "main":
        resumed, next_steps = World(tmp_path, world.saved[1]), (230, 250, 330)
    else:
        resumed, learner, next_steps = World(tmp_path, world.saved[2]), Takeover(None), (50, 60, 150)
        resumed.part.learner_ready(OTHER)
        assert not learner.wanted
        learner.want(resumed.told[OTHER][0].number, None)
        learner.load_state_dict({"begun_anew": learner.state_dict()["begun_anew"]})
    restarts = [await learned_until(resumed, step, learner) for step in next_steps]
    assert restarts == [older == "main", False, True]


@pytest.mark.virtual_time
async def test_a_part_of_another_league_is_refused_before_the_pool_changes(tmp_path):
    world = World(tmp_path)
    world.policy(FIRST, 0)
    await until_blocked()
    world.checkpoint(1)
    pool = {file.name: file.read_bytes() for file in (tmp_path / "Duel" / "league").iterdir()}
    other = {"Other": world.saved[1]["Duel"]}
    with pytest.raises(StageError, match="belongs to Other, but should belong to Duel.*: restore the order"):
        World(tmp_path, other)
    assert {file.name: file.read_bytes() for file in (tmp_path / "Duel" / "league").iterdir()} == pool
