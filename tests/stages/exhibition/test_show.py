"""The show: the game's own pace, persons beside players, a countdown, and the score."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from headrace.config import RunConfig
from headrace.stages.brains import BrainRequest, make_brain
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import play
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import GreedyPlayer
from headrace.stages.exhibition.film import make_shown_group
from headrace.stages.exhibition.people import AWAY_S, Cast, HumanControllers, keys_of
from headrace.stages.exhibition.show import PacedGroup

pytestmark = pytest.mark.virtual_time
LEFT, RIGHT = "Volley?team=0", "Volley?team=1"


def make_player(spec, name):
    """A player of a run that has learned nothing yet, but has left a snapshot, which can't be read."""
    if name == "newest":
        return None
    if name == "scripted":
        return GreedyPlayer(make_brain(BrainRequest("scripted", game="Volley", spec=spec)), spec)
    raise StageError(f"{name} is damaged")


class Enough(Exception):
    pass


class Stand:
    """A show in virtual time: `seen` has (seconds, note, about) of each picture."""

    def __init__(self, environment, most=200, behaviors=None):
        config = RunConfig.from_plain({"environment": environment, "behaviors": behaviors or {"Volley": {}}}, None)
        self.group, self.film = make_shown_group(EnvironmentRequest(config))
        self.began = asyncio.get_running_loop().time()
        self.seen, self.played = [], []
        self.most = most
        self.on_picture = lambda shown: None
        display = self.film.display
        self.people = HumanControllers(
            lambda spec: keys_of(spec, {}, {} if display is None else display.keys), lambda: self.now
        )
        self.cast = Cast(make_player, self.people)
        self.show = PacedGroup(self.group, self.film, self.people, self._put)

    @property
    def now(self):
        return asyncio.get_running_loop().time() - self.began

    def moves(self, side):
        """The seconds and actions of each of a side's decisions."""
        return [(at, actions) for at, behavior_id, actions in self.played if behavior_id == side and actions]

    def take(self, side):
        self.people.direct([side], paused=False, speed=1.0)

    async def _put(self, shown):
        self.seen.append((round(self.now, 3), shown.note, shown.about))
        self.on_picture(shown)
        if len(self.seen) >= self.most:
            raise Enough

    def _decide(self, behavior_id, steps):
        actions = self.cast.decide(self.group.behavior_specs[behavior_id], steps)
        self.played.append((self.now, behavior_id, actions.discrete.tolist()))
        return actions

    async def run(self, seed=3):
        with pytest.raises(Enough):
            async for _ in play(self.show, self._decide, await self.show.reset(seed)):
                pass
        return self


def volley(**more):
    return Stand({"kind": "builtin", "id": "Volley", "num_envs": 50}, **more)


@pytest.mark.lengthy
async def test_a_game_is_shown_at_its_own_pace_and_decided_as_often_as_in_training():
    stand = await volley().run()
    running = [at for at, note, _ in stand.seen if not note]
    assert np.diff(running).min() == pytest.approx(0.02, abs=1e-3)
    assert np.diff([at for at, _ in stand.moves(LEFT)])[:3].tolist() == pytest.approx([0.12] * 3)
    assert stand.group.num_envs == 1


@pytest.mark.lengthy
async def test_at_a_higher_pace_pictures_are_left_out():
    stand = volley()
    stand.people.direct([], paused=False, speed=4.0)
    await stand.run()
    assert np.diff([at for at, _ in stand.moves(LEFT)])[:3].tolist() == pytest.approx([0.03] * 3)
    plain = [now - before for (before, said, _), (now, note, _) in pairwise(stand.seen) if not said and not note]
    assert min(plain) >= 0.019


async def test_the_players_game_begins_with_a_countdown_and_the_keys_move_the_agent():
    stand = volley(most=40)
    stand.take(LEFT)
    stand.on_picture = lambda shown: stand.people.receive_keys(LEFT, len(stand.seen), ["ArrowRight"])
    await stand.run()
    assert [note for _, note, _ in stand.seen[:5]] == ["", "3", "2", "1", ""]
    assert all(actions == [[2, 0]] for _, actions in stand.moves(LEFT))


@pytest.mark.lengthy
async def test_the_side_s_player_takes_over_from_a_person_who_leaves():
    stand = volley(most=700)
    stand.cast.give(LEFT, "scripted")
    stand.take(LEFT)
    stand.people.receive_keys(LEFT, 0, ["ArrowUp"])
    await stand.run()
    at_rest = [actions == [[1, 0]] for at, actions in stand.moves(LEFT) if 1.9 < at < AWAY_S]
    assert at_rest
    assert all(at_rest)
    after = [actions for at, actions in stand.moves(LEFT) if at > AWAY_S]
    assert any(action != [[1, 0]] for action in after)


@pytest.mark.lengthy
async def test_points_and_games_are_counted_and_looked_at():
    stand = volley(most=1200)
    stand.cast.give(RIGHT, "scripted")
    await stand.run()
    notes = {note for _, note, _ in stand.seen}
    assert {"point", "won"} <= notes
    assert sum(stand.show.standings.wins.values()) == stand.show.standings.games > 0
    assert all(about in (LEFT, RIGHT) for _, note, about in stand.seen if note == "point")


@pytest.mark.lengthy
async def test_a_person_who_takes_over_starts_a_new_game():
    stand = volley(most=400)

    def take(shown):
        if len(stand.seen) == 200:
            stand.group.score[0, 0] = 3
            stand.take(LEFT)
            stand.show.restart()

    stand.on_picture = take
    await stand.run()
    assert [note for _, note, _ in stand.seen[200:]].count("3") == 1
    assert stand.film.now().score[LEFT] < 3


@pytest.mark.lengthy
async def test_at_a_board_the_game_waits_for_a_person():
    stand = Stand({"kind": "builtin", "id": "ConnectFour"}, 60, {"ConnectFour": {}})
    first = "ConnectFour?team=0"
    stand.take(first)
    waited = []

    def press(shown):
        if shown.note == "key":
            waited.append(len(stand.played))
            held = ["4"] if len(waited) % 3 == 0 else []
            stand.people.receive_keys(first, len(stand.seen), held)

    stand.on_picture = press
    await stand.run()
    moves = [actions for _, actions in stand.moves(first)]
    assert waited[:3] == [0, 0, 0]
    assert moves[0] == [[3]]
    assert len(moves) > 1


async def test_an_unreadable_snapshot_is_reported_and_the_game_continues():
    stand = volley(most=30)
    stand.cast.give(LEFT, "step 100")
    await stand.run()
    assert stand.cast.trouble == "step 100 is damaged; Volley?team=0 acts at random"


async def test_pictures_of_gymnasium_are_images_at_its_pace():
    pytest.importorskip("pygame")
    stand = Stand({"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 4}, 5, {"CartPole": {}})
    await stand.run()
    assert stand.film.now().image[:2] == b"\xff\xd8"  # JPEG
    assert stand.film.frame_s == pytest.approx(0.02)
    keys = keys_of(stand.group.behavior_specs["CartPole"], {}, {})
    assert list(keys.press) == ["ArrowLeft", "ArrowRight"]


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({}, "Unity shows its games itself"),
        ({"environment": {"kind": "mlagents", "factory": "a:b"}}, "have no images"),
    ],
)
def test_environments_without_images_are_refused_by_name(plain, words):
    config = RunConfig.from_plain({"behaviors": {"Ball": {}}, **plain}, None)
    with pytest.raises(StageError, match=words):
        make_shown_group(EnvironmentRequest(config))
