"""People in the run's only instance: the keys that they press, the game's pace, and how the game waits for them."""

import asyncio
from functools import partial

import numpy as np
import pytest

from headrace.config import KeyMapSettings, KeySettings, RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.brains import BrainRequest, make_brain
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup, GroupWithDeadlines, StoppableGroup
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import make_shown_group
from headrace.stages.exhibition.people import LATE_S, HumanBrain, HumanControllers, keys_of
from headrace.stages.exhibition.show import PacedGroup

SIDE = "Ball?team=1"
SPEC = BehaviorSpec(SIDE, (ObservationSpec("seen", (3,)),), ActionSpec(1, (3,), masked=True))
KEYS = KeyMapSettings(
    press={
        "a": KeySettings(branch=0, value=1),
        "b": KeySettings(branch=0, value=2),
        "up": KeySettings(index=0, value=0.5),
    }
)
ROWS = (np.zeros((2, 3), np.float32),)
ALL = np.ones((2, 3), np.bool_)


class Table:
    """The person of one behaviour id, with a clock that is set by hand."""

    def __init__(self, wait=False):
        self.now = 0.0
        keys = KEYS.model_copy(update={"wait": wait})
        self.people = HumanControllers(lambda spec: keys, lambda: self.now, lambda spec: spec.team == 1)
        self.brain = make_brain(BrainRequest("player", person=partial(HumanBrain, self.people), spec=SPEC))

    def act(self, masks=ALL, rows=ROWS):
        made = self.brain.act(rows, masks, np.random.default_rng(0)).actions
        return made.continuous.tolist(), made.discrete.tolist()

    def press(self, *keys, number=0):
        self.people.direct([SIDE], paused=False, speed=1.0)
        self.people.receive_keys(SIDE, number, keys)


def test_the_players_keys_decide_for_all_agents_of_the_behaviour_id():
    table = Table()
    assert table.act() == ([[0.0], [0.0]], [[0], [0]])
    table.press("b", "up")
    assert table.act() == ([[0.5], [0.5]], [[2], [2]])
    assert table.act(None) == table.act()
    assert table.act(np.array([[1, 1, 0], [1, 1, 1]], np.bool_))[1] == [[0], [2]]
    assert table.act(ALL[:0], (ROWS[0][:0],)) == ([], [])


def test_a_silent_person_s_keys_are_released_until_the_next_message():
    table = Table()
    table.press("b")
    table.now = LATE_S - 0.1
    assert (table.people.missing([SPEC]), table.act()[1]) == ([], [[2], [2]])
    table.now = LATE_S
    assert (table.people.missing([SPEC]), table.act()[1]) == ([SIDE], [[0], [0]])
    table.people.receive_keys(SIDE, 1, ["b"])
    assert (table.people.missing([SPEC]), table.act()[1]) == ([], [[2], [2]])


def test_leaving_the_seat_releases_the_keys():
    table = Table()
    table.press("b")
    table.people.direct([], paused=False, speed=1.0)
    assert table.people.missing([SPEC]) == [SIDE]
    assert table.act()[1] == [[0], [0]]
    table.people.receive_keys(SIDE, 1, ["b"])  # on its way when the seat was left
    table.people.direct([SIDE], paused=False, speed=1.0)
    assert table.act()[1] == [[0], [0]]


def test_a_tap_counts_until_the_next_step():
    table = Table()
    table.press("a")
    table.people.receive_keys(SIDE, 1, [])
    assert table.act() == table.act() == ([[0.0], [0.0]], [[1], [1]])
    table.people.decided([SIDE])
    assert table.act()[1] == [[0], [0]]


def test_a_person_outside_the_run_s_game_is_refused():
    with pytest.raises(StageError, match="behaviors.Ball.brain.0: a person can play only in the run's own game"):
        make_brain(BrainRequest("player", key=("behaviors", "Ball", "brain", 0), spec=SPEC))


LEFT, RIGHT = "Volley?team=0", "Volley?team=1"


class PlayedGame:
    """A run's game in virtual time, whose actor decides at rest: `seen` has (seconds, note, about) of each picture."""

    def __init__(self, game="Volley", side=RIGHT, **more):
        environment = {"kind": "builtin", "id": game, **more}
        config = RunConfig.from_plain({"environment": environment, "behaviors": {game: {}}}, None)
        group, self.film = make_shown_group(EnvironmentRequest(config))
        self.clock = asyncio.get_running_loop().time
        self.seen, self.told, self.moves = [], [], []
        self.side = side
        self.people = HumanControllers(
            lambda spec: keys_of(spec, {}, self.film.display.keys), self.clock, lambda spec: spec.behavior_id == side
        )
        self.game = PacedGroup(group, self.film, self.people, self._show, self.told.append)
        self.last = None
        self._number, self._held, self._beating = 0, (), None

    async def _show(self, shown):
        self.seen.append((round(self.clock(), 3), shown.note, shown.about))

    async def tick(self):
        """One tick of an actor; returns the behaviour ids that have rows."""
        actions = {}
        for behavior_id, steps in () if self.last is None else self.last.steps.items():
            spec, masks = self.game.behavior_specs[behavior_id], steps.action_masks
            count = len(steps.agent_ids) - steps.ended
            rest = ActionBatch(np.zeros((count, 0), np.float32), np.full((count, 2), (1, 0), np.int32))
            if behavior_id == self.side:
                actions[behavior_id] = self.people.actions(spec, masks, count)
                self.moves += [actions[behavior_id].discrete.tolist()] if count else []
            elif masks is not None:
                actions[behavior_id] = ActionBatch(rest.continuous, masks.argmax(axis=1)[:, None].astype(np.int32))
            else:
                actions[behavior_id] = rest
        self.last = await self.game.step(actions)
        return [*self.last.steps]

    async def __aenter__(self):
        self.last = await self.game.reset(3)
        return self

    async def __aexit__(self, *_):
        self.go()

    def person(self, *held):
        """Somebody sits down, and is heard four times a second, or holds other keys than before."""
        if self._beating is None:
            self.people.direct([self.side], paused=False, speed=1.0)
            self._beating = asyncio.create_task(self._beat())
        self._hear(held)

    def go(self):
        """Nothing is heard of the person any more."""
        if self._beating is not None:
            self._beating.cancel()
        self._beating = None

    def _hear(self, held):
        self._held = held
        self._number += 1
        self.people.receive_keys(self.side, self._number, held)

    async def _beat(self):
        while True:
            await asyncio.sleep(0.25)
            self._hear(self._held)


async def waiting(task):
    """Let a tick run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()


@pytest.mark.virtual_time
async def test_the_game_waits_for_its_person_and_then_keeps_its_pace():
    async with PlayedGame() as played:
        assert isinstance(played.game, EnvironmentGroup)
        assert isinstance(played.game, GroupWithDeadlines)
        assert isinstance(played.game, StoppableGroup)
        assert played.last.steps == {}
        tick = asyncio.create_task(played.tick())
        await waiting(tick)
        assert played.game.has_deadlines, "it does not count as silent"
        assert played.told == [[RIGHT]]
        played.person("ArrowRight")
        assert await tick == []
        assert not played.game.has_deadlines
        assert await played.tick() == [LEFT, RIGHT]
        assert [note for _, note, _ in played.seen] == ["", "3", "2", "1"]
        assert played.told == [[RIGHT], []]
        began = played.clock()
        for _ in range(4):
            played.person("ArrowRight")
            assert await played.tick() == [LEFT, RIGHT]
        assert played.clock() - began == pytest.approx(4 * 0.12)
        assert np.diff([at for at, _, _ in played.seen[-20:]]) == pytest.approx(0.02, abs=2e-3)


@pytest.mark.virtual_time
async def test_a_waiting_game_follows_commands_and_loses_no_row():
    async with PlayedGame() as played:
        for _ in range(3):
            tick = asyncio.create_task(played.tick())
            await waiting(tick)
            played.people.changed.set()
            assert await tick == []
        played.people.changed.set()  # told between two ticks
        assert await played.tick() == []
        played.person()
        assert await played.tick() == [LEFT, RIGHT]


@pytest.mark.virtual_time
async def test_the_game_pauses_for_its_person():
    async with PlayedGame() as played:
        played.person()
        await played.tick()
        played.people.direct([RIGHT], paused=True, speed=1.0)
        assert await played.tick() == []  # what it was told may be for its actor, too
        tick = asyncio.create_task(played.tick())
        await waiting(tick)
        played.people.direct([RIGHT], paused=False, speed=2.0)
        await tick
        assert await played.tick() == [LEFT, RIGHT]
        heard = played.clock()
        played.person()
        await played.tick()
        assert played.clock() - heard == pytest.approx(0.06)
        played.go()
        while not played.told:
            await played.tick()
        tick = asyncio.create_task(played.tick())
        await waiting(tick)
        assert LATE_S <= played.clock() - heard < LATE_S + 0.2, "then it waits"
        played.person()
        assert await tick == []


@pytest.mark.virtual_time
async def test_a_board_game_waits_for_the_person_s_move():
    first = "ConnectFour?team=0"
    async with PlayedGame("ConnectFour", first) as played:
        played.person()
        asked = 0
        while len(played.moves) < 3:
            if await played.tick() == [] and played.seen[-1][1:] == ("key", first):
                asked += 1
                played.person("4")
                played.person()
        assert asked == 3
        assert played.moves == [[[3]]] * 3


@pytest.mark.lengthy
@pytest.mark.virtual_time
async def test_the_end_of_a_run_does_not_wait_for_a_point_to_be_looked_at():
    async with PlayedGame(options={"points_to_win": 1}) as played:
        played.person()
        await played.tick()
        played.game.request_stop()
        began = played.clock()
        for _ in range(100):
            played.person()
            await played.tick()
        assert played.clock() == began
        assert {"won"} <= {note for _, note, _ in played.seen}
