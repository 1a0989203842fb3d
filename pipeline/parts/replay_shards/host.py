"""The host for one shard of a behaviour's replay buffer (`pipeline.hosts.replay`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.config import SACHyperparameters
from headrace.pipeline.common.graph import REPLAY_SHARD, TRAINER, learner_name, part_name, saved_shards
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import ControlEnd, FolderMoved, OpenEdge, PartFailed
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.checkpoint import Checkpoint, unfinished_folder
from headrace.queues.ends import ItemSource, Sender
from headrace.queues.files import REAL
from headrace.queues.specs import BehaviorSpec
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.replay.replay_memory import ReplayFileError, ReplayMemory, read_replay, write_replay
from headrace.stages.trainer.replay.sharded_replay import ReplayShard, deal, shard_capacity


class ReplayShardHost(Host):
    """Runs one shard of a replay buffer."""

    named_in_failures = True  # all shards run the same stage, so its name is not enough

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        loop = asyncio.get_running_loop()
        self._receiver: asyncio.Future[ItemSource[Any]] = loop.create_future()
        self._sender: asyncio.Future[Sender[Any]] = loop.create_future()
        assert plan.spec is not None, "a shard's plan has its behaviour's spec"
        settings = self.config.behavior_settings(plan.behavior)
        self._hyperparameters = SACHyperparameters.model_validate(settings.hyperparameters)
        self._spec = spec = BehaviorSpec.from_plain(dict(plan.spec))
        replicas = self.config.pipeline.hosts.replay.replicas
        capacity = shard_capacity(self._hyperparameters.buffer_size, replicas)
        seed = derive_seed(plan.seed, REPLAY_SHARD, plan.behavior, plan.replica)
        self._shard = ReplayShard(ReplayMemory(spec, ObservationLayout(spec), capacity), seed)

    async def _work(self) -> None:
        self._restore()
        receiver, sender = await self._receiver, await self._sender
        context = self.stages.context(REPLAY_SHARD)
        hooks = StageHooks(save_part=self._save)
        await StageRunner(self._shard, receiver, sender, context, hooks, ends_barriers=True).run()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, FolderMoved):
                self.stages.folder.move(Path(message.run_folder))
            elif isinstance(message, OpenEdge):
                if message.name.startswith("samples/"):
                    self._sender.set_result(await self.open_sender(message))
                else:
                    self._receiver.set_result(await self.open_receiver(message))

    def _restore(self) -> None:
        """Restore this shard's rows from a checkpoint, or its portion of all rows if the number of shards differs."""
        checkpoint = self.checkpoint
        trainer = part_name(TRAINER, learner_name(self.plan.behavior))
        if checkpoint is None or trainer not in checkpoint.parts:
            return
        now, then = self.config.pipeline.hosts.replay.replicas, len(saved_shards(checkpoint.parts, self.plan.behavior))
        if now == then:
            state = self.stages.saved_state(REPLAY_SHARD)
            assert state is not None, "it is among the checkpoint's parts"
            self._shard.load_state_dict(state)
        if not self._hyperparameters.save_replay_buffer:
            return
        log = self.stages.context(REPLAY_SHARD).log
        try:
            if now == then:
                read_replay(self._shard.memory, self._file(checkpoint.folder, self.plan.replica), self._shard.rows)
                return
            self._deal(checkpoint, then)
        except ReplayFileError as error:
            self._shard.memory.clear()
            log.warning("%s could not be restored, so it starts empty: %s", self.plan.name, error)
        else:
            was = f"in {then} shard{'' if then == 1 else 's'}" if then else "inside the learner"
            log.info(
                "%s restored %d rows of a replay buffer that was previously %s.",
                self.plan.name,
                len(self._shard.memory),
                was,
            )

    def _deal(self, checkpoint: Checkpoint, shards: int) -> None:
        """Restore this shard's part of a buffer that had `shards` shards, or 0 if the learner held the buffer."""
        memory, plan = self._shard.memory, self.plan
        names = saved_shards(checkpoint.parts, plan.behavior)
        for number in range(max(shards, 1)):
            capacity = shard_capacity(self._hyperparameters.buffer_size, max(shards, 1))
            former = ReplayMemory(self._spec, ObservationLayout(self._spec), capacity)
            if shards:
                rows = int(checkpoint.read(part_name(REPLAY_SHARD, names[number]))["rows"])
                read_replay(former, self._file(checkpoint.folder, number), rows)
            else:
                trainer = checkpoint.read(part_name(TRAINER, learner_name(plan.behavior)))["trainer"]
                read_replay(former, self._file(checkpoint.folder), int(trainer["step"]))
            deal(former, memory, plan.replica - number, self.config.pipeline.hosts.replay.replicas)
        self._shard.rows = len(memory)

    def _save(self, stage: str, number: int, state: Any) -> None:
        if self.stages.has_saved(stage, number):
            return
        if self._hyperparameters.save_replay_buffer:
            try:
                folder = unfinished_folder(self.stages.folder.check() / "checkpoints", number)
                REAL.make_folder(folder)
                write_replay(self._shard.memory, self._file(folder, self.plan.replica), self._shard.rows)
            except OSError as error:
                self.control.send(PartFailed(number, self.stages.part_name(stage), str(error)))
                return
        self.stages.save_part(stage, number, state)

    def _file(self, folder: Path, shard: int | None = None) -> Path:
        """Return the path of a shard's file, or of the learner's own buffer if `shard` is None."""
        number = "" if shard is None else f"-{shard}"
        return folder / f"replay-{quote(self.plan.behavior, safe='')}{number}.bin"
