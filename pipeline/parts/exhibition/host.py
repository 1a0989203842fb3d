"""The exhibition host: plays one game at its own pace for the page's viewers, and lets people take part.

It sends frames and the available choices to main over the control channel, and receives players, keys and the newest
policies. Its failures don't affect the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.brains import SCRIPTED_PLAYERS, kind_of
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import ControlEnd, DirectShow, OpenEdge, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.parts.exhibition.hosted_game import GameNotes, HostedGame
from headrace.pipeline.policies.demo_files import SUFFIX, write_demos
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.policies.inference import lone_brain, named_brains, policy_file, policy_maker
from headrace.pipeline.policies.model_files import read_policy_update
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import answered
from headrace.queues.ends import Receiver
from headrace.queues.errors import StreamError
from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import next_stream_path
from headrace.stages.brains import BrainRequest, make_brain
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters, final_parameters
from headrace.stages.environments.protocol import AgentSteps, maybe_await, play
from headrace.stages.errors import StageError, describe_error
from headrace.stages.evaluation.opponents import SEED, GreedyPlayer, Player
from headrace.stages.exhibition.demonstration import EDGE, Demonstration
from headrace.stages.exhibition.people import NEWEST, Cast, Person
from headrace.stages.exhibition.show import PacedGroup

log = logging.getLogger(__name__)


_NAMED = ("best", "opponent")
_STEP = "step "
"""Prefix of an exported policy's player name, followed by the policy's step."""


class RunPlayers:
    """The players available for a run's behaviours.

    Args:
        config: the run's configuration.
        folder: the run's folder.
        sent: the newest policies, keyed by behaviour name; the caller updates this mapping. Not used in inference mode,
            where the newest policy is read from a file.
    """

    def __init__(self, config: RunConfig, folder: Path, sent: Mapping[str, PolicyUpdate]) -> None:
        self._config = config
        self._folder = folder
        self._sent = sent
        self._make = policy_maker(config, folder)

    def choices(self, spec: BehaviorSpec) -> list[str]:
        """Return the names of the players available for a behaviour id."""
        return [NEWEST, *self._brains(spec)]

    def make(self, spec: BehaviorSpec, name: str) -> Player | None:
        """Create a player; return None for the newest policy of a behaviour that has no policy yet.

        Raises:
            StageError: if no player has this name, or the player can't play.
        """
        if name == NEWEST:
            return self._newest(spec)
        request = self._brains(spec).get(name)
        if request is None:
            raise StageError(f"player '{name}' for {spec.behavior_id} does not exist or is gone")
        return GreedyPlayer(make_brain(request), spec)

    def _newest(self, spec: BehaviorSpec) -> Player | None:
        brain = lone_brain(self._config, SEED, spec)
        if brain is not None:
            return GreedyPlayer(brain, spec)
        if self._config.checkpoint_settings.inference:
            try:
                update = read_policy_update(policy_file(self._config, self._folder, spec.name), spec.name)
                policy = self._make(spec)
            except RunError as error:
                raise StageError(str(error)) from error
            policy.load(update)
            return GreedyPlayer(policy, spec)
        if spec.name not in self._sent:
            return None
        policy = self._make(spec)
        policy.load(self._sent[spec.name])
        return _Follower(GreedyPlayer(policy, spec), self._sent, spec.name)

    def _brains(self, spec: BehaviorSpec) -> dict[str, BrainRequest]:
        """Return requests for players that do not learn, keyed by player name; exported policies come newest first."""
        config, request = self._config, BrainRequest("random", folder=self._config.source_folder, seed=SEED, spec=spec)
        request = replace(request, key=("monitor",), game=config.builtin_game)
        requests = {"scripted": replace(request, use="scripted")} if config.builtin_game in SCRIPTED_PLAYERS else {}
        requests |= named_brains(config, SEED, spec)
        settings = config.evaluation
        if settings is not None and kind_of(settings.opponents) is not None:
            use, arguments = settings.opponents, settings.opponents_with
            requests[use] = replace(request, use=use, given=arguments, key=("evaluation", "opponents"))
        requests["random"] = request
        folder = behavior_folder(self._folder, spec.name)
        exported = {_STEP + str(step_in_name(path)): path for path in exports_by_step(folder, spec.name)}
        named = {label: folder / f"{folder.name}-{label}.pt" for label in _NAMED}
        files = {label: path for label, path in named.items() if answered(path, path.is_file)}
        files |= dict(reversed(exported.items()))
        return requests | {label: replace(request, use=str(path)) for label, path in files.items()}


class _Follower:
    """Plays with the newest policy sent so far."""

    def __init__(self, player: GreedyPlayer, sent: Mapping[str, PolicyUpdate], behavior: str) -> None:
        self._player = player
        self._sent = sent
        self._behavior = behavior
        self._loaded = sent[behavior]

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        newest = self._sent[self._behavior]
        if newest is not self._loaded:
            self._player.load(newest)
            self._loaded = newest
        return self._player(steps)


NAME = "exhibition"
DEMONSTRATIONS = "demonstrations"
"""Name of the folder, in the run's folder, for recordings of people."""
_ANNOUNCE_S = 0.5
"""Seconds between checks for changed choices."""


class ExhibitionHost(Host):
    """Runs the exhibition's game."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._sent: dict[str, PolicyUpdate] = {}
        players = RunPlayers(self.config, plan.folder, self._sent)
        self._game = HostedGame(self.config, control, choices=players.choices, notes=self._notes)
        self._cast = Cast(players.make, self._game.people)
        self._group: PacedGroup | None = None
        self._wanted = ""
        """Behaviour id whose person the viewers want to record; empty for none."""
        self._demonstration: tuple[str, Demonstration] | None = None
        self._saved = ""

    async def _work(self) -> None:
        config = self.config
        request = EnvironmentRequest(config, self.plan.seed, config.pipeline.hosts.actors.replicas + 1)
        self._group = group = self._game.make(request)
        parameters = EpisodeParameters()
        parameters.receive(final_parameters(config.environment_parameters))
        connect_parameters(group, parameters)
        parameters.reseed(self.plan.seed)
        try:
            start = await group.reset(derive_seed(self.plan.seed, NAME, time.time_ns()))
            self._record()
            async with asyncio.TaskGroup() as tasks:
                announcing = tasks.create_task(self._announce())
                async for _ in play(group, self._decide, start):
                    pass
                announcing.cancel()
        finally:
            self._end_demonstration()
            await maybe_await(group.close)

    async def _listen(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = []
            async for message in self.control.receive():
                if isinstance(message, Stop):
                    break
                if isinstance(message, OpenEdge):
                    following.append(tasks.create_task(self._follow(await self.open_receiver(message))))
                    continue
                begun = self._game.receive(message)
                if isinstance(message, DirectShow):
                    # Let the requested players play; if a person has begun to play, begin a new game.
                    for behavior_id, (player, _) in message.parts.items():
                        self._cast.give(behavior_id, player)
                    if begun and self._group is not None:
                        self._group.restart()
                        if self._demonstration is not None:
                            self._demonstration[1].cut()
                    self._wanted = message.recorded
                    self._record()
            for task in following:
                task.cancel()

    async def _follow(self, receiver: Receiver[PolicyUpdate]) -> None:
        async for policy in receiver:
            self._sent[policy.behavior_id] = policy.copy()
            del policy  # its slab is released with the last reference

    async def _announce(self) -> None:
        """Send the available choices whenever they change."""
        while True:
            self._game.announce()
            await asyncio.sleep(_ANNOUNCE_S)

    def _notes(self) -> GameNotes:
        recorded = 0 if self._demonstration is None else self._demonstration[1].steps
        return GameNotes(recorded, self._saved, self._cast.trouble)

    def _decide(self, behavior_id: str, steps: AgentSteps) -> ActionBatch:
        assert self._group is not None, "it is played"
        actions = self._cast.decide(self._group.behavior_specs[behavior_id], steps)
        if self._demonstration is not None and self._demonstration[0] == behavior_id:
            self._add(self._demonstration[1], self._game.people.person(behavior_id), steps, actions)
        return actions

    # Recording. ------------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Record the person whom the viewers want to record, and end any other recording."""
        if self._group is None or (self._demonstration is not None and self._demonstration[0] == self._wanted):
            return
        self._end_demonstration()
        spec = self._group.behavior_specs.get(self._wanted)
        if spec is None:
            return
        path = next_stream_path(self.plan.folder / DEMONSTRATIONS, spec.name, EDGE)
        try:
            demonstration = Demonstration(path, spec, self.plan.run_id, self.plan.config)
        except StreamError as error:
            self._say(f"this game can't be recorded: {error}")
            return
        self._demonstration = self._wanted, demonstration
        self._saved = ""

    def _add(
        self, demonstration: Demonstration, person: Person | None, steps: AgentSteps, actions: ActionBatch
    ) -> None:
        try:
            if person is None or person.agent is None or person.late:
                demonstration.cut()
            else:
                demonstration.add(steps, actions, person.agent)
        except StreamError as error:
            self._end_demonstration()
            self._say(f"the recording stopped: {error}")

    def _end_demonstration(self) -> None:
        if self._demonstration is None:
            return
        (_, demonstration), self._demonstration = self._demonstration, None
        path = demonstration.path
        try:
            demonstration.close()
            if not demonstration.steps:
                path.unlink()
                self._say("nothing was recorded, because no one played")
                return
            written = write_demos(str(path), path.with_suffix(SUFFIX))
            steps = sum(len(episodes) for episodes in written.values())
            where = path.relative_to(self.plan.folder.parent)
            self._say(f"saved {steps} steps to {where}, and to a {SUFFIX} file next to it")
        except (StageError, StreamError, OSError) as error:
            self._say(f"{path}: {describe_error(error) if isinstance(error, OSError) else error}")

    def _say(self, words: str) -> None:
        self._saved = words
        log.info("Recording of a person: %s.", words)
