"""The host of one shard of a behaviour's replay buffer (`pipeline.hosts.replay`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from config import SACHyperparameters
from pipeline.common.graph import REPLAY_SHARD
from pipeline.common.seeds import derive_seed
from pipeline.control.channel import ControlEnd
from pipeline.control.messages import OpenEdge, PartFailed
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.hosts.runtime import Host
from pipeline.run_folder.checkpoint import unfinished_folder
from queues.ends import ItemSource, Outlet
from queues.specs import BehaviorSpec
from stages.loop import StageHooks, StageRunner
from stages.policy.observations import ObservationLayout
from stages.trainer.replay_file import ReplayFileError, read_replay, write_replay
from stages.trainer.sac.replay_memory import ReplayMemory
from stages.trainer.sac.replay_shard import ReplayShard
from stages.trainer.sac.sharded_replay import shard_capacity


class ReplayShardHost(Host):
    """Runs one shard."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        loop = asyncio.get_running_loop()
        self._inlet: asyncio.Future[ItemSource[Any]] = loop.create_future()
        self._outlet: asyncio.Future[Outlet[Any]] = loop.create_future()
        assert plan.spec is not None, "a shard's plan has its behaviour's spec"
        settings = self.config.behavior_settings(plan.behavior)
        self._hyperparameters = SACHyperparameters.model_validate(settings.hyperparameters)
        spec = BehaviorSpec.from_plain(dict(plan.spec))
        replicas = self.config.pipeline.hosts.replay.replicas
        capacity = shard_capacity(self._hyperparameters.buffer_size, replicas)
        seed = derive_seed(plan.seed, REPLAY_SHARD, plan.behavior, plan.replica)
        self._shard = ReplayShard(ReplayMemory(spec, ObservationLayout(spec), capacity), seed)

    async def _work(self) -> None:
        self._restore()
        inlet, outlet = await self._inlet, await self._outlet
        await outlet.put(self._shard.size())
        context = self.stages.context(REPLAY_SHARD)
        hooks = StageHooks(save_part=self._save)
        await StageRunner(self._shard, inlet, outlet, context, hooks, ends_barriers=True).run()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, OpenEdge):
                if message.name.startswith("samples/"):
                    self._outlet.set_result(await self.open_outlet(message))
                else:
                    self._inlet.set_result(await self.open_inlet(message))

    def _restore(self) -> None:
        state = self.stages.saved_state(REPLAY_SHARD)
        if state is None:
            return
        self._shard.load_state_dict(state)
        if self._hyperparameters.save_replay_buffer:
            assert self.checkpoint is not None, "the state was read from it"
            try:
                read_replay(self._shard.memory, self._file(self.checkpoint.folder), self._shard.rows)
            except ReplayFileError as error:
                log = self.stages.context(REPLAY_SHARD).log
                log.warning("%s could not be restored, so it starts empty: %s", self.plan.name, error)

    def _save(self, stage: str, number: int, state: Any) -> None:
        if self.stages.has_saved(stage, number):
            return
        if self._hyperparameters.save_replay_buffer:
            try:
                folder = unfinished_folder(self.plan.folder / "checkpoints", number)
                folder.mkdir(parents=True, exist_ok=True)
                write_replay(self._shard.memory, self._file(folder), self._shard.rows)
            except OSError as error:
                self.control.send(PartFailed(number, self.stages.part_name(stage), str(error)))
                return
        self.stages.save_part(stage, number, state)

    def _file(self, folder: Path) -> Path:
        return folder / f"replay-{quote(self.plan.behavior, safe='')}-{self.plan.replica}.bin"
