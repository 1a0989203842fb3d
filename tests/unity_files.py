"""Tries Unity's own demonstrations and models, file by file, and prints the tables of docs/unity-files.md.

    python tests/unity_files.py FOLDER...

A folder is a checkout of ML-Agents, or of anything else with such files; of equal files one is tried. A demonstration is
learned from by the command: imitated without an environment, then with GAIL and cloning on the stand-in Unity. A model is
compared with onnxruntime, called by hand with the same inputs and seed, and played by the command on the stand-in.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from onnx_samples import load_onnxruntime, session  # noqa: E402 - the two folders above are what they're found in
from runs import Command  # noqa: E402
from unity_runs import BUILD, free_port, reports  # noqa: E402

from headrace.config import NetworkSettings  # noqa: E402
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec  # noqa: E402
from headrace.stages.environments.engines.unity.demo_steps import DemoReader  # noqa: E402
from headrace.stages.errors import StageError  # noqa: E402
from headrace.stages.policy.design import PolicyDesign  # noqa: E402
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy  # noqa: E402
from headrace.stages.trainer.imitation.unity_demos import read_unity_demo  # noqa: E402

BRANCHES = {"SoccerTwos": (3, 3, 3), "Sorter": (3, 3, 3), "discrete1vis0vec_2_3action": (2, 3)}
"""Of models of version 2, which state the sum alone."""
SPLITS = {"SoccerTwos": ("264", "72"), "DungeonEscape": ("1", "370"), "Sorter": ("20x23", "10", "8")}
"""The sensors of their environments, where they are several vectors."""
AGENTS, TICKS = 5, 3
"""Of the comparison by hand."""


def main(folders: Sequence[str]) -> int:
    """Print both tables, row by row."""
    print(
        "| demonstration | observations | actions | pairs | steps | episodes | imitated | GAIL and cloning |\n|"
        + "---|" * 8
    )
    for path in unique(folders, ".demo"):
        print(_row(path, folders, demonstration), flush=True)
    print("\n| model | version | observations | actions | by hand | played |\n|" + "---|" * 6)
    for path in unique(folders, ".onnx"):
        print(_row(path, folders, model), flush=True)
    return 0


def unique(folders: Sequence[str], suffix: str) -> Iterator[Path]:
    """Files of a kind, each content once; pointers of Git LFS are left out."""
    found: set[bytes] = set()
    for path in sorted(path for folder in folders for path in Path(folder).rglob(f"*{suffix}")):
        content = path.read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest not in found and not content.startswith(b"version https://git-lfs"):
            found.add(digest)
            yield path.resolve()


def _row(path: Path, folders: Sequence[str], trial: Any) -> str:
    root = next(Path(folder).resolve() for folder in folders if path.is_relative_to(Path(folder).resolve()))
    try:
        cells = trial(path)
    except (StageError, AssertionError, pytest.fail.Exception) as error:
        cells = [f"refused: {error}"]
    return f"| {' | '.join(map(str, [path.relative_to(root), *cells]))} |"


def demonstration(path: Path) -> list[str]:
    """Read it, and learn from it by the command."""
    read = read_unity_demo(path, "Given")
    assert read is not None, "no steps"
    specs, actions = read.spec.observations, read.spec.actions
    shapes = [_text((s.shape[2], *s.shape[:2]) if s.channels_last else s.shape) for s in specs]
    common = {"network_settings": {"hidden_units": 32, "num_layers": 1}}
    cloned = {"demo_path": str(path), "batch_size": 64, "buffer_size": 500, "learning_rate": 1e-3}
    pixels = any(len(spec.shape) == 3 for spec in specs)
    alone = {"trainer_type": "bc", "hyperparameters": cloned, "max_steps": 1000 if pixels else 10000}
    beside = {
        "trainer_type": "ppo",
        "hyperparameters": {"buffer_size": 200, "batch_size": 50},
        "max_steps": 600,
        "time_horizon": 20,
        "reward_signals": {"gail": {"demo_path": str(path)}},
        "behavioral_cloning": {"demo_path": str(path), "samples_per_update": 64},
    }
    unity = unity_settings(shapes, actions.continuous_size, actions.discrete_branches)
    return [
        ", ".join(shapes),
        _actions(actions.continuous_size, actions.discrete_branches),
        str(sum(1 for _ in DemoReader(path))),
        str(len(read)),
        str(len(read.episode_lengths)),
        _learned({"behaviors": {"Given": {**alone, **common, "summary_freq": 500}}}),
        _learned({"env_settings": unity, "behaviors": {"Given": {**beside, **common, "summary_freq": 200}}}),
    ]


def _learned(plain: dict[str, Any]) -> str:
    """Run the command to its end; its last line of statistics."""
    with tempfile.TemporaryDirectory() as folder:
        command = Command(Path(folder), plain)
        try:
            status = command.wait()
        finally:
            command.end()
        lines = [line for line in command.output.splitlines() if "Step: " in line]
        assert status == 0, command.output
        return lines[-1].partition("Given. ")[2].rstrip(".").replace("|", "/") if lines else "no summary"


def model(path: Path) -> list[str]:
    """Compare it with onnxruntime by hand, and play it by the command."""
    given = Model(path)
    ways = [False, True] if given.deterministic else [False]
    differences = [f"{compare(given, way):.2g}" for way in ways]
    return [
        str(given.version),
        ", ".join(given.shapes),
        _actions(given.continuous, given.branches) + (", memory" if given.memory else ""),
        " / ".join(differences),
        play(given, ways[-1]),
    ]


class Model:
    """A model, with nothing but the packages `onnx` and `onnxruntime`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = onnx.load(path)
        made = {name for node in loaded.graph.node for name in node.output}
        made |= {each.name for each in loaded.graph.initializer}
        for output in [output for output in loaded.graph.output if output.name not in made]:
            loaded.graph.output.remove(output)
        self.content = loaded.SerializeToString()
        made_session = session(self.content)
        self.inputs = {each.name: tuple(each.shape[1:]) for each in made_session.get_inputs()}
        self.outputs = [each.name for each in made_session.get_outputs()]
        zeros = {name: np.zeros((1, *shape), np.float32) for name, shape in self.inputs.items()}
        self._on_zeros = dict(zip(self.outputs, made_session.run(None, zeros), strict=True))
        self.version = int(self._on_zeros["version_number"][0])
        self.memory = self.inputs.get("recurrent_in", (0, 0))[1] if "recurrent_out" in self.outputs else 0

    @cached_property
    def name(self) -> str:
        """Of the file, without the version that the names of Unity's test models end with."""
        return self.path.stem.removesuffix("_v1_0").removesuffix("_obsolete_recurr")

    @cached_property
    def shapes(self) -> list[str]:
        """Of the sensors, in an order in which an environment may have them."""
        if self.version == 2 and self.name in SPLITS:
            return list(SPLITS[self.name])
        others = ("action_masks", "recurrent_in")
        return [_text(shape) for name, shape in sorted(self.inputs.items()) if name not in others]

    @property
    def continuous(self) -> int:
        """Number of continuous actions."""
        return int(self._on_zeros["continuous_actions"].size) if "continuous_actions" in self.outputs else 0

    @property
    def branches(self) -> tuple[int, ...]:
        """Sizes of discrete branches."""
        if "action_masks" not in self.inputs:
            return ()
        choices = self.inputs["action_masks"][0]
        stated = self._on_zeros.get("discrete_action_output_shape")
        if self.version == 2 or stated is None:
            return BRANCHES.get(self.name, (choices,))
        return tuple(int(size) for size in stated.reshape(-1))

    @property
    def deterministic(self) -> bool:
        """Whether it can be played deterministically."""
        return any(name.startswith("deterministic_") for name in self.outputs) or (
            self.version == 2 and not self.continuous
        )

    def fed(self, seen: list[Any], masks: Any, memories: Any) -> dict[str, Any]:
        """The inputs, from what sensors give: [n, *shape] each."""
        inputs = {f"obs_{index}": array for index, array in enumerate(seen)}
        if self.version == 2:
            vectors, images = ([array for array in seen if array.ndim == rank] for rank in (2, 4))
            inputs |= {f"visual_observation_{index}": array for index, array in enumerate(images)}
            inputs |= {"vector_observation": np.concatenate(vectors, axis=1)} if vectors else {}
        inputs |= {"action_masks": masks.astype(np.float32), "recurrent_in": memories[:, None]}
        return {name: inputs[name] for name in self.inputs}


def compare(given: Model, deterministic: bool) -> float:
    """The largest difference of an action, or of a memory, between the policy and onnxruntime."""
    shapes = [tuple(map(int, shape.split("x"))) for shape in given.shapes]
    spec = BehaviorSpec(
        "Given",
        tuple(ObservationSpec(f"sensor{index}", shape) for index, shape in enumerate(shapes)),
        ActionSpec(given.continuous, given.branches, masked=bool(given.branches)),
    )
    load_onnxruntime().set_seed(1)
    policy = OnnxPolicy(given.path, PolicyDesign(spec, NetworkSettings(deterministic=deterministic)))
    by_hand = session(given.content, 1)
    metadata = [name for name in given.outputs if not name.startswith(("deterministic", "recurrent"))]
    by_hand.run(metadata, {name: np.zeros((1, *shape), np.float32) for name, shape in given.inputs.items()})
    random, recall, memories, worst = np.random.default_rng(0), None, np.zeros((AGENTS, given.memory), np.float32), 0.0
    for tick in range(TICKS):
        seen = [random.normal(size=(AGENTS, *shape)).astype(np.float32) for shape in shapes]
        masks = random.random((AGENTS, sum(given.branches))) < 0.7
        masks[:, np.cumsum(given.branches, dtype=int) - 1] = True
        allowed = masks if given.branches else None
        decision = policy.act(tuple(seen), allowed, np.random.default_rng(tick), deterministic, recall)
        found = _outputs(given, by_hand, given.fed(seen, masks, memories), deterministic)
        apart = [np.abs(decision.actions.continuous - found[0])] if given.continuous else []
        if given.branches:
            apart.append(
                _apart(given, found[int(given.continuous > 0)], decision.actions.discrete, masks, deterministic)
            )
        if given.memory:
            recall, memories = decision.recall, found[-1].reshape(AGENTS, -1)
            assert recall is not None
            apart.append(np.abs(recall.memories - memories))
        worst = max(worst, *(float(each.max()) for each in apart))
    return worst


def _outputs(given: Model, by_hand: Any, inputs: dict[str, Any], deterministic: bool) -> list[Any]:
    prefix = "deterministic_" if deterministic and given.version == 3 else ""
    discrete = (
        "action" if given.version == 2 and not given.continuous and "action" in given.outputs else "discrete_actions"
    )
    names = [f"{prefix}continuous_actions"] * bool(given.continuous) + [f"{prefix}{discrete}"] * bool(given.branches)
    names += ["recurrent_out"] * bool(given.memory)
    if given.version == 3 or not given.memory:
        return list(by_hand.run(names, inputs))
    rows = [by_hand.run(names, {name: array[[row]] for name, array in inputs.items()}) for row in range(AGENTS)]
    return [np.concatenate(each) for each in zip(*rows, strict=True)]


def _apart(given: Model, found: Any, chosen: Any, masks: Any, deterministic: bool) -> Any:
    """Differences of choices; of sampled ones of version 2, which the model does not draw: 1 where one is forbidden."""
    if given.version == 3:
        return np.abs(found.reshape(AGENTS, -1) - chosen)
    ends = np.cumsum(given.branches)[:-1]
    logs = np.split(np.where(masks, found, -np.inf), ends, axis=1)
    if deterministic:
        return np.stack([branch.argmax(axis=1) for branch in logs], axis=1) != chosen
    rows = np.arange(AGENTS)
    return np.stack([np.isinf(branch[rows, chosen[:, index]]) for index, branch in enumerate(logs)], axis=1)


def play(given: Model, deterministic: bool) -> str:
    """Play it by the command; how much."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unity = unity_settings(given.shapes, given.continuous, given.branches, "--report", str(folder / "reports"))
        settings = {"trainer_type": "ppo", "init_path": str(given.path), "summary_freq": 20}
        options = ["--inference", *(["--deterministic"] if deterministic else [])]
        Command(folder, {"env_settings": unity, "behaviors": {"Given": settings}}, *options).end_after("Step: 100.")
        (report,) = reports(folder / "reports")
        assert report["returncode"] == 0, report["reason"]
        return f"{'deterministic' if deterministic else 'sampled'} {report['agent_steps']}"


def unity_settings(shapes: Sequence[str], continuous: int, branches: Sequence[int], *arguments: str) -> dict[str, Any]:
    """The stand-in Unity with agents of these sensors and actions."""
    acting = ["--continuous", str(continuous), *(["--branches", *map(str, branches), "--mask"] if branches else [])]
    return {
        "env_path": str(BUILD),
        "env_args": ["--scene", "given", "--agents", "4", "--shapes", *shapes, *acting, *arguments],
        "base_port": free_port(),
        "timeout_wait": 60,
        "seed": 5,
    }


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _actions(continuous: int, branches: Sequence[int]) -> str:
    parts = [f"{continuous} continuous"] * bool(continuous) + [f"branches {', '.join(map(str, branches))}"] * bool(
        branches
    )
    return " and ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
