"""Evaluation during a run: main's side, which feeds each new policy to the evaluation host, and the host.

The host plays policies in separate environments, and writes the best policy together with its score. Training continues
if the host fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.config.fields import Settings
from headrace.pipeline.control import ControlEnd, OpenEdge, PolicyEvaluated, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostHandle, HostPlan
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.policies.export import OnnxExporter, best_policy, export_policy, read_export, read_score
from headrace.pipeline.policies.inference import lone_brain, policy_maker
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.checkpoint import checksum_of
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import answered
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.files import matching, read_file, write_atomic
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.given import identity_of
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters, final_parameters
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import EnvironmentEnded, StageError, describe_error
from headrace.stages.evaluation import EvaluationResult, EvaluationStage
from headrace.stages.evaluation.opponents import make_opponents
from headrace.stages.loop import NoSender, StageFailure, StageRunner
from headrace.stages.policy.design import PolicyDesign, design_of

log = logging.getLogger(__name__)


LAST_SHARE = 0.75
"""Fraction of `grace_s` available for playing the last policies after training has ended."""


class EvaluationHost(Host):
    """Runs the evaluation stage for all behaviours."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._policies = WaitingPolicies(self._begin_end)
        self._limit = asyncio.timeout(None)
        self._onnx = OnnxExporter(self.stages.context(NAME).log)
        self._unsaved: dict[str, EvaluationResult] = {}
        """Results of best policies that could not be written yet, keyed by behaviour name."""

    async def _work(self) -> None:
        settings, config = self.config.evaluation, self.config
        assert settings is not None, "there is no evaluation host without it"
        parameters = EpisodeParameters()
        # Always the last lessons, so that scores are comparable and the best policy is the best at the final task.
        parameters.receive(final_parameters(config.environment_parameters))
        request = EnvironmentRequest(config, self.plan.seed, config.pipeline.hosts.actors.replicas, self.plan.folder)

        def make_connected_group() -> EnvironmentGroup:
            group = make_group(request)
            connect_parameters(group, parameters)
            return group

        stage = EvaluationStage(
            make_connected_group,
            policy_maker(config, self.plan.folder),
            make_opponents(config, self),
            every=settings.every,
            episodes=settings.episodes,
            report=self._report,
            best=self._standing_scores(),
            before_reset=parameters.reseed,
            brain_of=partial(lone_brain, config, self.plan.seed),
        )
        sink: Any = NoSender()
        runner = StageRunner(stage, self._policies, sink, self.stages.context(NAME), self.stages.hooks(NAME))
        try:
            async with self._limit:
                await runner.run()
        except StageFailure as failure:
            if isinstance(failure.cause, EnvironmentEnded):
                raise StageError(f"its environments have closed: {failure.cause}") from failure
            raise
        except TimeoutError:
            log.warning(
                "Evaluation: the last policies have no score, because their games had not ended %.0f s after the end "
                "of training. Reduce evaluation.episodes to save time.",
                self._last_s,
            )

    async def _listen(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = []
            async for message in self.control.receive():
                if isinstance(message, Stop):
                    break
                if isinstance(message, OpenEdge):
                    following.append(tasks.create_task(self._policies.follow(await self.open_receiver(message))))
            for task in following:
                task.cancel()

    @property
    def _last_s(self) -> float:
        return LAST_SHARE * self.config.pipeline.supervision.grace_s

    def _begin_end(self) -> None:
        if self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._last_s)

    @preparing()  # importing the packages that write and run `.onnx` files is slow
    def _standing_scores(self) -> dict[str, float]:
        """Return the scores of earlier best policies that count, keyed by behaviour name; complete the policies' files.

        An earlier host may have died between a policy and the files derived from it.
        """
        best = {}
        for path in matching(self.plan.folder, "*/*-best.pt"):
            try:
                name, mean, why = standing_score(path, self.config, self.plan.environment_checksum)
                self._complete(path)
            except (OSError, ValueError) as error:
                mean, why = None, str(error)
            if mean is None:
                log.warning("%s. The next policy that is evaluated replaces this file, whatever its score.", why)
            else:
                best[name] = mean
        return best

    def _report(self, result: EvaluationResult) -> None:
        """Write the best policy, and report a score to main. After a disk error, the next report tries again."""
        name = result.spec.name
        if result.best:
            self._unsaved[name] = result
        unsaved = self._unsaved.get(name)
        if unsaved is not None and self._export(unsaved.policy, unsaved.spec, "best", unsaved.score.mean):
            del self._unsaved[name]
        self.control.send(PolicyEvaluated(name, result.policy.step, asdict(result.score), result.best))

    @preparing()
    def _export(self, policy: PolicyUpdate, spec: BehaviorSpec, label: str, mean: float | None = None) -> bool:
        """Write a policy, with the mean return of the best one; return False if a disk error prevented it."""
        settings, source_folder, score = self.config.behavior_settings(spec.name), self.config.source_folder, None
        if mean is not None:
            compared = conditions(self.config, spec.name, self.plan.environment_checksum)
            score = {"behavior": spec.name, "step": policy.step, "mean": mean, "conditions": compared}
        try:
            self.stages.folder.check()
            path = export_policy(
                self.plan.folder, policy, spec, settings, label=label, source_folder=source_folder, score=score
            )
        except OSError as error:
            again = "" if score is None else "; the next evaluation tries again"
            log.warning("Evaluation: the %s policy of %s could not be written: %s%s", label, spec.name, error, again)
            return False
        if score is not None:
            self._derive(path, design_of(spec, settings, source_folder), policy, score)
        return True

    def _complete(self, path: Path) -> None:
        """Write the files that are derived from a best policy, unless they are those of this policy."""
        score, onnx = read_score(path), path.with_suffix(".onnx")
        with suppress(OSError, ValueError):
            if json.loads(read_file(path.with_suffix(".json"))) == score and answered(onnx, onnx.is_file):
                return
        export = read_export(path, self.config.source_folder)
        self._derive(path, export.design, export.update, score)

    def _derive(self, path: Path, design: PolicyDesign, policy: PolicyUpdate, score: Mapping[str, Any]) -> None:
        """Write a best policy's `.onnx` file, and last its score as `.json`, for people."""
        self._onnx.write(path, design, policy)
        if self._onnx.refused:
            return
        try:
            write_atomic(path.with_suffix(".json"), json.dumps(score).encode())
        except OSError as error:
            log.warning("Evaluation: the score of %s could not be written: %s", path, error)

    # Storage for fixed opponents. ----------------------------------------------------------------------------------

    def read(self, behavior: str) -> PolicyUpdate | None:
        """Return the policy that plays a behaviour's opponents in all its evaluations; None if there is none."""
        folder = behavior_folder(self.plan.folder, behavior)
        path = folder / f"{folder.name}-opponent.pt"
        if not answered(path, path.is_file):
            return None
        try:
            return read_export(path).update
        except (OSError, ValueError) as error:
            log.warning("Evaluation: %s; the behaviour's newest policy plays instead.", error)
            return None

    def keep(self, policy: PolicyUpdate, spec: BehaviorSpec) -> None:
        """Store a policy as the fixed opponent for later evaluations."""
        self._export(policy, spec, "opponent")


# The evaluation stage's input queue: each behaviour's newest policy that waits to be evaluated.


class WaitingPolicies:
    """Merges the policy queues of all behaviours, longest-waiting policy first; queues can be added during iteration.

    Iteration ends when all queues have ended and no policy waits.

    Args:
        on_end: called when the last queue has ended, possibly long before the last policy is taken.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._on_end = on_end
        self._waiting: dict[str, PolicyUpdate] = {}
        self._changed = asyncio.Event()
        self._open = 0
        self._ended = False

    async def follow(self, receiver: Receiver[PolicyUpdate]) -> None:
        """Take policies from one queue until it ends."""
        self._open += 1
        try:
            async for policy in receiver:
                self._waiting[policy.behavior_id] = policy.copy()  # replaces a policy that is still waiting
                del policy  # its slab is released with the last reference
                self._changed.set()
        finally:
            receiver.close()
            self._open -= 1
            if not self._open:
                self._ended = True
                self._on_end()
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[PolicyUpdate]:
        """Yield policies until all queues have ended."""
        while True:
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Do nothing: the owner cancels the tasks that read the queues."""


_ENVIRONMENT_KEYS_WITHOUT_EFFECT = {"factory", "num_envs", "info_keys", "keys", "sides"}
_PROGRAM_KEYS = {"env_path", "env_args", "side_channels"}
_GRAPHICS_KEYS = {"no_graphics", "no_graphics_monitor"}


def environment_checksum(config: RunConfig) -> str:
    """Return a checksum of everything in the configuration that determines a run's environments, but not their number.

    Main calls this function, because it has the environment that a caller of `run` passed.
    """
    environment = config.environment
    return checksum_of(
        {
            "section": _plain(environment, exclude=_ENVIRONMENT_KEYS_WITHOUT_EFFECT),
            "factory": identity_of(environment.factory) if environment is not None else None,
            "program": _plain(config.env_settings, include=_PROGRAM_KEYS),
            "engine": _plain(config.engine_settings, exclude=_GRAPHICS_KEYS),
            "parameters": final_parameters(config.environment_parameters).parameters,
        }
    )


def conditions(config: RunConfig, behavior: str, environment: str) -> dict[str, str]:
    """Return checksums of the settings that determine what a behaviour's score means, keyed by what they are about.

    Args:
        config: the run's configuration.
        behavior: the behaviour's name.
        environment: the `environment_checksum`.
    """
    settings = config.known_settings(behavior)
    brains = {name: [_plain(brain) for brain in block.brain] for name, block in config.behaviors.items() if block.brain}
    return {
        "environment": environment,
        "reward_signals": checksum_of(_plain(settings and settings.reward_signals)),
        "evaluation": checksum_of({"evaluation": _plain(config.evaluation, exclude={"every"}), "brains": brains}),
    }


def standing_score(policy: Path, config: RunConfig, environment: str) -> tuple[str, float | None, str]:
    """Return the behaviour's name and the score of a best policy's file.

    Returns:
        The name; the mean return, or None if it does not count under the present settings; and why it does not count.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is damaged or contains no score.
    """
    score = read_score(policy)
    try:
        name, mean, was = str(score["behavior"]), float(score["mean"]), dict(score["conditions"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"{policy} has a score of another form ({error!r})") from error
    changed = [key for key, now in conditions(config, name, environment).items() if was.get(key) != now]
    if not changed:
        return name, mean, ""
    words = f"was achieved with different settings ({', '.join(changed)})"
    return name, None, f"{policy}: the score, {mean:.3f} at step {score.get('step')}, {words}"


def _plain(settings: Settings | None, **which: Any) -> Any:
    """Return settings as JSON values, without those that have their defaults."""
    return {} if settings is None else settings.model_dump(mode="json", by_alias=True, exclude_defaults=True, **which)


NAME = "evaluation"


# One host serves all behaviours, because environments are expensive; the run continues without it (docs/decisions/048).
class Evaluation(RunPart):
    """A run's evaluation: starts its host with the first behaviour, feeds it policies, and restarts it if it dies."""

    receives = (PolicyEvaluated,)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._environment = environment_checksum(run.plan.config)
        self._host: HostHandle | None = None
        self._senders: dict[str, Sender[Any]] = {}
        self._newest: dict[str, PolicyUpdate] = {}
        self._done: set[str] = set()
        """Behaviours whose trainers will send no more policies."""
        self._joining = asyncio.Lock()
        self._ended = self._at_once = False
        self._failure = ""
        self._lost = ""
        """Reason why evaluation has ended early; empty if it has not."""

    def results(self, behavior: str) -> Mapping[str, Any]:
        """Return a behaviour's best score."""
        plan, best = self.run.plan, None
        with suppress(OSError, ValueError):  # no policy was evaluated, or none could be written
            policy = best_policy(plan.folder.path, behavior)
            _, best, _ = standing_score(policy, plan.config, self._environment)
        return {"best_evaluation": best}

    async def learns(self, behavior: str, slot: ActorSlot | None) -> None:
        """Start evaluating a behaviour; do nothing if this has already started."""
        async with self._joining:
            if self._ended or self._lost or behavior in self._senders:
                return
            try:
                if self._host is None:
                    self._host = await self._start()
                await self._open(behavior, self._host)
            except Exception as error:
                self._give_up(describe_error(error))

    def policy_came(self, behavior: str, policy: PolicyUpdate | None) -> None:
        """Send the host a trainer's new policy, which replaces one that is still waiting; None closes the queue."""
        if self._lost:
            return
        sender = self._senders.get(behavior)
        if policy is None:
            self._done.add(behavior)
            if sender is not None:
                sender.close()
            return
        kept = self._newest[behavior] = policy.copy()
        if sender is not None:
            with suppress(QueueClosed):  # the host has ended
                sender.put_nowait(kept)

    def receive(self, host: HostHandle, message: PolicyEvaluated) -> None:
        """Record a score from the host."""
        self.run.shutdown.moved()
        self.run.reporter.record_evaluation(message)

    def host_failed(self, why: str) -> None:
        """Store the reason why the host is about to end."""
        self._failure = why

    async def host_ended(self, host: HostHandle, status: int, how: str) -> bool:
        """Restart the host if it ended during training, within the restart limits; return True if it is restarted."""
        reason, self._failure = self._failure or f"its process {how}", ""
        if self.run.shutdown.begun:
            self._lost = self._lost or (reason if status and not self._at_once else "")
            return False
        refusal = self.run.supervisor.refusal(NAME, time.monotonic())
        if refusal is not None:
            self._give_up(f"{reason}\nIt is not restarted: {refusal}.")
            return False
        log.warning("Evaluation has failed: %s\nRestarting it; training continues.", reason)
        async with self._joining:
            try:
                self._host = await self._start(replaces=host)
                for behavior in [*self._senders]:
                    self._senders.pop(behavior).close()
                    await self._open(behavior, self._host)
            except Exception as error:
                self._give_up(describe_error(error))
                return False
        return True

    def fewer_hosts(self, at_once: bool) -> None:
        """End the host once no trainer is left.

        Unless `at_once` is True, the host still plays the last policies first.
        """
        if not self.run.shutdown.learners_ended:
            return
        self._ended, self._at_once = True, at_once
        if self._host is not None and (at_once or not self._senders):
            self._host.control.send(Stop())

    async def finish(self) -> None:
        """Warn if any policies were not evaluated."""
        if self._lost:
            log.warning("Not all policies were evaluated: evaluation had failed (%s).", self._lost.partition("\n")[0])

    async def _start(self, replaces: HostHandle | None = None) -> HostHandle:
        return await self.run.launcher.start(NAME, NAME, replaces=replaces, environment_checksum=self._environment)

    async def _open(self, behavior: str, host: HostHandle) -> None:
        sender = self._senders[behavior] = await host.sender(f"policies/{behavior}", newest=True)
        if behavior in self._newest:
            sender.put_nowait(self._newest[behavior])
        if behavior in self._done:
            sender.close()

    def _give_up(self, reason: str) -> None:
        self._lost = reason
        self._newest.clear()
        log.error("Evaluation has failed: %s\nTraining continues without it.", reason)
        for sender in self._senders.values():
            sender.close()
