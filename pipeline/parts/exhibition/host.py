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
from typing import Any

from headrace.config import RunConfig
from headrace.config.brains import SCRIPTED_PLAYERS, kind_of
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.lessons import final_parameters
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.control.messages import DirectShow, KeysHeld, OpenEdge, ShowAnnounced, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.brains import lone_brain, named_brains
from headrace.pipeline.policies.demo_files import SUFFIX, write_demos
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.policies.inference import policy_file, policy_maker
from headrace.pipeline.policies.model_files import read_policy_update
from headrace.pipeline.roles.announcing import described_show, described_side, keys_for, picture_taken, unknown_names
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.ends import Inlet
from headrace.queues.errors import StreamError
from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_writer import next_stream_path
from headrace.stages.brains import make_brain
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.errors import StageError, describe_error
from headrace.stages.evaluation.opponents import SEED, GreedyPlayer, Player
from headrace.stages.exhibition import Cast, Casting, Show
from headrace.stages.exhibition.demonstration import EDGE, Demonstration
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.making import make_shown_group
from headrace.stages.exhibition.projector import Shown
from headrace.stages.exhibition.show import NEWEST

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
        found = {"scripted": replace(request, use="scripted")} if config.builtin_game in SCRIPTED_PLAYERS else {}
        found |= named_brains(config, SEED, spec)
        settings = config.evaluation
        if settings is not None and kind_of(settings.opponents) is not None:
            use, arguments = settings.opponents, settings.opponents_with
            found[use] = replace(request, use=use, given=arguments, key=("evaluation", "opponents"))
        found["random"] = request
        folder = behavior_folder(self._folder, spec.name)
        exported = {_STEP + str(step_in_name(path)): path for path in exports_by_step(folder, spec.name)}
        named = {label: folder / f"{folder.name}-{label}.pt" for label in _NAMED}
        files = {label: path for label, path in named.items() if path.is_file()} | dict(reversed(exported.items()))
        return found | {label: replace(request, use=str(path)) for label, path in files.items()}


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
        self._group: EnvironmentGroup | None = None
        self._film: FilmedGroup | None = None
        self._cast: Cast | None = None
        self._players = RunPlayers(self.config, plan.folder, self._sent)
        self._show: Show | None = None
        self._wish = DirectShow({})
        self._demonstration: tuple[str, Demonstration] | None = None
        self._saved = ""
        self._announced: Mapping[str, Any] = {}
        self._number = 0

    async def _work(self) -> None:
        config = self.config
        request = EnvironmentRequest(config, self.plan.seed, config.pipeline.hosts.actors.replicas + 1)
        self._group, self._film = group, film = make_shown_group(request)
        parameters = EpisodeParameters()
        parameters.receive(final_parameters(config.environment_parameters))
        connect_parameters(group, parameters)
        parameters.reseed(self.plan.seed)
        self._cast = cast = Cast(self._players, lambda spec: keys_for(self.config, film, spec), time.monotonic)
        self._show = show = Show(group, film, cast, self._put, self._played, time.monotonic)
        try:
            self._direct(self._wish)
            async with asyncio.TaskGroup() as tasks:
                announcing = tasks.create_task(self._announce())
                await show.run(derive_seed(self.plan.seed, NAME, time.time_ns()))
                announcing.cancel()
        finally:
            self._end_demonstration()
            await maybe_await(group.close())

    async def _listen(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = []
            async for message in self.control.receive():
                match message:
                    case Stop():
                        break
                    case OpenEdge():
                        following.append(tasks.create_task(self._follow(await self.open_inlet(message))))
                    case DirectShow():
                        self._wish = message
                        self._direct(message)
                    case KeysHeld():
                        hands = None if self._cast is None else self._cast.hands(message.behavior_id)
                        if hands is not None:
                            hands.hear(message.number, message.keys)
            for task in following:
                task.cancel()

    async def _follow(self, inlet: Inlet[PolicyUpdate]) -> None:
        async for policy in inlet:
            self._sent[policy.behavior_id] = policy.copy()
            del policy  # its slab is released with the last reference

    # What the page shows. --------------------------------------------------------------------------------------------

    async def _put(self, shown: Shown) -> None:
        assert self._show is not None, "it shows this"
        self._number += 1
        recorded = 0 if self._demonstration is None else self._demonstration[1].steps
        self.control.send(picture_taken(self._number, shown, self._show.standings, recorded))
        await self.control.drain()

    async def _announce(self) -> None:
        """Send the available choices whenever they change."""
        while True:
            values = self._described()
            if values != self._announced:
                self._announced = values
                self.control.send(ShowAnnounced(values))
            await asyncio.sleep(_ANNOUNCE_S)

    def _described(self) -> dict[str, Any]:
        group, film, cast = self._group, self._film, self._cast
        assert group is not None
        assert film is not None
        assert cast is not None
        sides = [
            described_side(self.config, film, spec, self._players.choices(spec))
            for spec in group.behavior_specs.values()
        ]
        trouble = cast.trouble or unknown_names(self.config, film, group.behavior_specs)
        return described_show(sides, film.display, self._saved, trouble)

    # Who plays. ------------------------------------------------------------------------------------------------------

    def _direct(self, wish: DirectShow) -> None:
        show, cast = self._show, self._cast
        if show is None or cast is None:
            return
        before = {*cast.seats}
        for behavior_id, (player, person) in wish.parts.items():
            cast.give(behavior_id, Casting(player, person))
        if {*cast.seats} - before:
            show.restart()
            if self._demonstration is not None:
                self._demonstration[1].cut()
        show.pace(wish.speed, wish.paused)
        if self._demonstration is None or self._demonstration[0] != wish.recorded:
            self._end_demonstration()
            if wish.recorded:
                self._begin_demonstration(wish.recorded)

    # Recording. ------------------------------------------------------------------------------------------------------

    def _begin_demonstration(self, behavior_id: str) -> None:
        assert self._group is not None, "it was made first"
        spec = self._group.behavior_specs.get(behavior_id)
        if spec is None:
            return
        path = next_stream_path(self.plan.folder / DEMONSTRATIONS, spec.name, EDGE)
        try:
            demonstration = Demonstration(path, spec, self.plan.run_id, self.plan.config)
        except StreamError as error:
            self._say(f"this game can't be recorded: {error}")
            return
        self._demonstration = behavior_id, demonstration
        self._saved = ""

    def _played(self, result: StepResult, actions: Mapping[str, ActionBatch]) -> None:
        if self._demonstration is None or self._cast is None:
            return
        behavior_id, demonstration = self._demonstration
        person = self._cast.person(behavior_id)
        try:
            if person is None or person.agent is None or person.hands.late:
                demonstration.cut()
            elif behavior_id in result.steps:
                demonstration.add(result.steps[behavior_id], actions[behavior_id], person.agent)
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
            steps = sum(len(each) for each in written.values())
            where = path.relative_to(self.plan.folder.parent)
            self._say(f"saved {steps} steps to {where}, and to a {SUFFIX} file next to it")
        except (StageError, StreamError, OSError) as error:
            self._say(f"{path}: {describe_error(error) if isinstance(error, OSError) else error}")

    def _say(self, words: str) -> None:
        self._saved = words
        log.info("Recording of a person: %s.", words)
