"""Play in the run's only instance: its actor shows the game on the live page, and waits for the people who play."""

from __future__ import annotations

from functools import partial

from headrace.config.brains import PLAYER, brains_of_team
from headrace.config.section_checks import persons_in
from headrace.pipeline.control import ControlMessage
from headrace.pipeline.parts.exhibition.hosted_game import HostedGame
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest


class PlayInRun(ActorPart):
    """Makes the actor's environment a game on the live page, if the brain `player` decides in it."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self._game = HostedGame(request.config, host.control, must_play=self._must_play)
        if persons_in(request.config):
            self.person, self.make_group = self._game.people.brain, partial(self._game.make, request)

    def receive(self, message: ControlMessage) -> None:
        """Handle the page's messages. Any message wakes a game that waits for people."""
        self._game.receive(message)
        self._game.people.changed.set()

    def _must_play(self, spec: BehaviorSpec) -> bool:
        settings = self.request.config.known_settings(spec.name)  # None is reported elsewhere
        brains = () if settings is None else brains_of_team(settings.brain, spec.team)
        return any(brain.use == PLAYER for brain in brains)
