"""Those who watch and play: who may ask for what, and what comes of it."""

import asyncio
import json

import pytest
from fakes import policy_update

from headrace.pipeline.control import HostFailed, LogLine, PictureTaken, ShowAnnounced, Stop
from headrace.pipeline.monitor.watching import Viewer, WishRefused
from headrace.pipeline.parts.exhibition.page import Exhibition, RunGame

SIDES = [
    {"id": each, "name": each, "choices": ["newest", "random"], "keys": [["a"]], "playable": True}
    for each in ("left", "right")
]


class Process:
    """A process that says what it is told to, in the place of one of the system."""

    def __init__(self):
        self.said = asyncio.Queue()
        self.heard = []
        self.status = 0
        self.killed = False
        self.queues = {}
        self.control = self

    def send(self, message):
        self.heard.append(message)

    async def receive(self):
        while (message := await self.said.get()) is not None:
            yield message

    async def sender(self, name, newest):
        assert newest
        self.queues[name] = []
        return self

    def put_nowait(self, policy):
        self.queues[f"policies/{policy.behavior_id}"].append(policy)

    async def wait(self):
        return self.status

    async def describe(self):
        return "in step()"

    def kill(self):
        self.killed = True
        self.said.put_nowait(None)

    def close(self):
        pass


class Stand:
    """A show with such processes."""

    def __init__(self, refused=""):
        self.processes = []
        self.newest = {}
        self.show = Exhibition(self.start, lambda: self.newest, refused)

    async def start(self, tasks):
        self.processes.append(Process())
        return self.processes[-1]

    async def until(self, holds):
        """Wait, in virtual time, until something holds; a minute is enough for anything."""
        async with asyncio.timeout(50):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def announced(self, number=1):
        await self.until(lambda: len(self.processes) == number)
        values = {"sides": SIDES, "display": None, "saved": "", "trouble": "", "waits": ""}
        self.processes[-1].said.put_nowait(ShowAnnounced(values))
        await self.until(lambda: self.show.status == "on")
        return self.processes[-1]


def ask(viewer, **wish):
    viewer.carry_out(json.dumps(wish))


@pytest.fixture
def show():
    made = Exhibition(None, dict, "")
    made.announced = {"sides": SIDES, "display": None, "saved": "", "trouble": "", "waits": ""}
    return made


@pytest.fixture
def viewer(show):
    return Viewer(show, may_play=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ("[]", "message"),
        ('{"do": "fly"}', "fly"),
        ('{"do": "give", "side": "left"}', "player"),
        ('{"do": "give", "side": "up", "player": "newest"}', "unknown side 'up'; available: left, right"),
        ('{"do": "give", "side": "left", "player": "../../x.pt"}', "unknown player '../../x.pt' for left"),
        ('{"do": "take", "side": "up"}', "unknown side 'up'"),
        ('{"do": "pace", "paused": false, "speed": 1000}', "the speed can be 0.25"),
        ('{"do": "record", "side": "left"}', "only your own play can be recorded"),
        ('{"do": "keys", "side": "left", "number": 0, "held": ["' + "a" * 50 + '"]}', "held"),
    ],
)
def test_an_invalid_request_of_a_viewer_is_refused_without_effect(show, viewer, text, words):
    before = show.order.message()
    with pytest.raises(WishRefused, match=words.replace("'", ".").replace("/", ".")):
        viewer.carry_out(text)
    assert show.order.message() == before


@pytest.mark.parametrize("wish", [{"do": "take"}, {"do": "keys", "number": 0, "held": []}, {"do": "record"}])
def test_without_the_token_one_may_watch_and_choose_but_not_take_part(show, viewer, wish):
    guest = Viewer(show, may_play=False)
    ask(guest, do="give", side="left", player="random")
    assert show.order.players == {"left": "random"}
    with pytest.raises(WishRefused, match="--monitor-control"):
        ask(guest, side="left", **wish)


@pytest.mark.parametrize(
    "wish", [{"do": "give", "side": "right", "player": "random"}, {"do": "pace", "paused": True, "speed": 1}]
)
def test_without_the_token_nothing_can_be_changed_while_a_person_plays(show, viewer, wish):
    ask(viewer, do="take", side="left")
    guest, before = Viewer(show, may_play=False), show.order.message()
    with pytest.raises(WishRefused, match="a person is playing"):
        ask(guest, **wish)
    assert show.order.message() == before


def test_a_side_has_one_person_and_a_person_one_side(show, viewer):
    other = Viewer(show, may_play=True)
    ask(viewer, do="take", side="left")
    with pytest.raises(WishRefused, match="another person is already playing"):
        ask(other, do="take", side="left")
    ask(other, do="leave", side="left")  # not theirs to leave
    ask(viewer, do="take", side="right")
    assert show.order.persons == {"right": viewer}
    ask(other, do="take", side="left")
    assert [side["mine"] for side in other.state()["sides"]] == [True, False]
    assert show.order.message().parts == {"right": ("newest", True), "left": ("newest", True)}


def test_closing_the_page_gives_the_side_back_and_ends_the_recording(show, viewer):
    ask(viewer, do="take", side="left")
    ask(viewer, do="record", side="left")
    assert show.order.recorded == "left"
    viewer.leave()
    assert show.order.message().parts == {}
    assert show.order.recorded == ""


@pytest.fixture
def players():
    """Two viewers of a run's own game in which a person plays on the left, and what was sent to main."""
    sent = []
    show = RunGame(sent.append)
    sides = [{**side, "choices": [], "playable": side["id"] == "left"} for side in SIDES]
    show.receive(ShowAnnounced({"sides": sides, "display": None, "saved": "", "trouble": "", "waits": "for left"}))
    return Viewer(show, may_play=True), Viewer(show, may_play=False), show, sent


def test_in_the_runs_game_a_person_can_only_take_a_side_and_the_run_sets_the_rest(players):
    viewer, guest, _, sent = players
    assert (viewer.state()["own"], viewer.state()["waits"], viewer.state()["status"]) == (True, "for left", "on")
    for who, wish, words in (
        (viewer, {"do": "take", "side": "right"}, "a person can play for right"),
        (viewer, {"do": "give", "side": "left", "player": "newest"}, "the configuration sets who plays"),
        (viewer, {"do": "record", "side": "left"}, "--record"),
        (guest, {"do": "take", "side": "left"}, "--monitor-control"),
        (guest, {"do": "pace", "paused": True, "speed": 1}, "--monitor-control"),
    ):
        with pytest.raises(WishRefused, match=words):
            ask(who, **wish)
    assert sent == []


def test_requests_in_a_run_s_own_game_go_to_its_actor_and_taken_sides_survive_its_replacement(players):
    viewer, _, show, sent = players
    ask(viewer, do="take", side="left")
    ask(viewer, do="keys", side="left", number=0, held=["a"])
    ask(viewer, do="pace", paused=True, speed=2.0)
    show.receive(None)
    assert viewer.state()["status"] == "starting"
    assert [side["mine"] for side in viewer.state()["sides"]] == [True, False]
    viewer.leave()
    took, keys, paused, left = sent
    assert (took.parts, keys.keys, keys.number) == ({"left": ("newest", True)}, ("a",), 1)
    assert (paused.paused, paused.speed, left.parts) == (True, 2.0, {})


@pytest.mark.virtual_time
async def test_keys_are_passed_on_in_order_and_only_the_players_own():
    stand = Stand()
    async with stand.show.watched():
        process = await stand.announced()
        first, second = (Viewer(stand.show, may_play=True) for _ in range(2))
        ask(first, do="take", side="left")
        process.heard.clear()
        ask(first, do="keys", side="left", number=3, held=["a"])
        ask(first, do="keys", side="left", number=3, held=["b"])
        ask(second, do="keys", side="left", number=9, held=["c"])
        ask(first, do="leave", side="left")
        ask(second, do="take", side="left")
        ask(second, do="keys", side="left", number=0, held=["d"])
        held = [(each.number, each.keys) for each in process.heard if hasattr(each, "keys")]
        assert held == [(1, ("a",)), (2, ("d",))]
    await stand.show.close()


@pytest.mark.virtual_time
async def test_a_failed_show_is_reported_once_and_restarts_on_request(caplog):
    stand = Stand()
    async with stand.show.watched():
        process = await stand.announced()
        process.said.put_nowait(PictureTaken({"number": 1}, b"jpeg"))
        await stand.until(lambda: stand.show.picture)
        process.said.put_nowait(HostFailed("step() raised ValueError: no", ""))
        process.said.put_nowait(None)
        await stand.until(lambda: stand.show.status == "failed")
        assert stand.show.trouble == "step() raised ValueError: no"
        assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
            "The game on the live page has failed: step() raised ValueError: no\nThe run continues."
        ]
        async with stand.show.watched():  # another viewer: not begun by that
            assert len(stand.processes) == 1
        ask(Viewer(stand.show, may_play=False), do="start")
        await stand.announced(2)
    await stand.show.close()


@pytest.mark.virtual_time
async def test_a_killed_process_is_a_failure_and_its_players_have_left():
    stand = Stand()
    async with stand.show.watched():
        process = await stand.announced()
        ask(Viewer(stand.show, may_play=True), do="take", side="left")
        process.status = -9
        process.said.put_nowait(None)
        await stand.until(lambda: stand.show.status == "failed")
        assert stand.show.trouble == "its process was killed by signal 9"
        assert stand.show.order.persons == {}


@pytest.mark.virtual_time
async def test_the_newest_policies_are_passed_on_each_once():
    stand = Stand()
    async with stand.show.watched():
        process = await stand.announced()
        old, new = (policy_update("Ball", version) for version in (1, 2))
        stand.newest["Ball"] = old
        await stand.until(lambda: process.queues.get("policies/Ball") == [old])
        stand.newest["Ball"] = new
        await stand.until(lambda: process.queues["policies/Ball"] == [old, new])
    await stand.show.close()


@pytest.mark.virtual_time
async def test_when_the_run_ends_the_process_is_stopped_first_and_has_time_to_write():
    stand = Stand()
    async with stand.show.watched():
        process = await stand.announced()
        closing = asyncio.create_task(stand.show.close())
        await stand.until(lambda: any(isinstance(each, Stop) for each in process.heard))
        assert not process.killed
        process.said.put_nowait(LogLine(20, "headrace.stages.exhibition", "a recording is written"))
        process.said.put_nowait(None)
        await closing
    assert stand.show.status == "off"


@pytest.mark.virtual_time
async def test_a_process_that_hangs_is_ended_with_what_it_does():
    stand = Stand()
    async with stand.show.watched():
        await stand.announced()
        await asyncio.sleep(100)
        assert stand.show.status == "failed"
        assert stand.show.trouble.startswith("it has not answered for")
        assert stand.show.trouble.endswith(": in step()")
