"""The way between the page and a run's own game: what is asked reaches its actor, also one that comes later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headrace.pipeline.control import DirectShow, KeysHeld, PictureTaken
from headrace.pipeline.parts.exhibition.page import RunGameMessages

HOST: Any = None
"""Whose messages they are does not matter here."""


class Actors:
    """The actors of a run: what each was sent."""

    def __init__(self):
        self.sent = []

    def send_to_sources(self, message):
        self.sent[-1].append(message)

    async def start(self, link):
        heard = []
        self.sent.append(heard)
        handle = SimpleNamespace(control=SimpleNamespace(send=heard.append))
        await link.actor_started(SimpleNamespace(handle=handle))


async def test_a_replacement_actor_receives_the_players_and_the_page_learns_of_the_replacement():
    actors, told = Actors(), []
    link = RunGameMessages(cast("Any", SimpleNamespace(broadcaster=actors)))
    link.game.join(lambda function, message: told.append(message))
    await actors.start(link)
    order = DirectShow({"Volley?team=1": ("newest", True)})
    for message in (DirectShow({}), order, KeysHeld("Volley?team=1", 1, ("a",))):
        link.send(message)
    link.receive(HOST, PictureTaken({}))
    await actors.start(link)
    assert actors.sent == [[DirectShow({}), order, KeysHeld("Volley?team=1", 1, ("a",))], [order]]
    assert told == [None, PictureTaken({}), None]
