"""Without graphics Unity's cameras see nothing; that is said before anybody wonders why nothing is learned."""

import logging

import pytest
from fake_unity import FakeUnity, ScriptedGame, asks, first, says
from unity_samples import agent, noise, picture, png

from headrace.config import EngineSettings
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge


def instance(without_graphics, *script):
    return ScriptedGame(
        0,
        lambda: FakeUnity(script),
        lambda: SideChannelBridge(EngineSettings(), None, 0, seed=7),
        warns_of_black_images=without_graphics,
    )


def sees(agent_id):
    return agent(agent_id, picture(png(noise(8, 9, 3)), (3, 8, 9)))


@pytest.mark.parametrize(
    ("without_graphics", "who", "warned"), [(True, sees(1), True), (True, asks(1), False), (False, sees(1), False)]
)
async def test_images_without_graphics_are_warned_of(without_graphics, who, warned, caplog):
    with caplog.at_level(logging.WARNING):
        await instance(without_graphics, first(who), says(who)).begin()
    assert ("observes images (Camera), and without graphics," in caplog.text) == warned


async def test_the_warning_comes_once_although_the_game_restarts(caplog):
    unity = instance(True, first(sees(1)))
    for _ in range(2):
        await unity.begin()
    assert caplog.text.count("without graphics") == 1
