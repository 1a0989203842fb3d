"""One environment of the zoo, in a process of its own: it is validated, trained, resumed, played, filmed and asked.

    python tests/zoo_visit.py minigrid 0 [--processes]

prints what was wrong with each step, and what it said. Without `--processes` the command is called in this process, as
its hosts are, which takes a third of the time; with it, each step is the real command, its hosts in processes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import yaml  # noqa: E402
from zoo_packages import RESUMED, TRAINED, Kept, packages  # noqa: E402

MARK = "what was found: "
PATIENCE_S = 600.0
Said = tuple[str, str]
"""What was wrong, empty if nothing was, and what the step said."""
Seen = tuple[str, Any, Any, Any]
"""Behaviour, observation, mask of its actions or None, their space."""


class Visit:
    """A visit to one environment.

    Args:
        kept: the environment.
        folder: for its files.
        processes: true for the real command in processes.
    """

    def __init__(self, kept: Kept, folder: Path, processes: bool) -> None:
        self._kept = kept
        self._folder = folder
        self._processes = processes
        self._plain = kept.configuration()
        if processes:
            del self._plain["pipeline"]
        (folder / "zoo.yaml").write_text(yaml.safe_dump(self._plain))
        self._run = folder / "results" / "zoo"

    def steps(self) -> Mapping[str, Callable[[], Said]]:
        """Return the steps by their names, in their order."""
        return {
            "validate": lambda: self._command("--validate"),
            "train": lambda: self._trained(TRAINED),
            "resume": lambda: self._trained(RESUMED, "--resume"),
            "inference": self._played,
            "film": self._filmed,
            "predict": self._asked,
        }

    def _command(self, *arguments: str) -> Said:
        words = [str(self._folder / "zoo.yaml"), *arguments]
        if "--validate" not in arguments:
            words += ["--run-id", "zoo", "--results-dir", str(self._run.parent)]
        if self._processes:
            line = [sys.executable, str(ROOT / "bin" / "run-pipeline"), *words]
            done = subprocess.run(line, cwd=self._folder, text=True, capture_output=True, stdin=subprocess.DEVNULL)
            status, said = done.returncode, done.stdout + done.stderr
        else:
            from headrace.pipeline.cli import main

            told = io.StringIO()
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                status = main(words)
            said = told.getvalue()
        return f"status {status}" if status else "", said

    def _trained(self, steps: int, *arguments: str) -> Said:
        settings = [f"--set=behaviors.{name}.max_steps={steps}" for name in self._plain["behaviors"]]
        wrong, said = self._command(*settings, *arguments)
        if wrong:
            return wrong, said
        from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

        newest = newest_checkpoint(self._run / "checkpoints")
        reached = {} if newest is None else newest.steps
        if reached.keys() != self._plain["behaviors"].keys() or min(reached.values()) < steps:
            return f"the newest checkpoint is at {dict(reached)}, expected {steps} steps or more", said
        if "--resume" in arguments and "starting from step 0" in said:
            return "it was not resumed", said
        return "", said

    def _played(self) -> Said:
        wrong, said = self._command("--inference", "--episodes", "3")
        if wrong:
            return wrong, said
        told = json.loads((self._run / "run_logs" / "inference.json").read_text())
        played = {name: len(score["returns"]) for name, score in told["behaviors"].items()}
        return ("" if played and min(played.values()) >= 3 else f"episodes: {played}, expected 3 of each"), said

    def _filmed(self) -> Said:
        films = self._folder / "films"
        wrong, said = self._command("--inference", "--episodes", "3", "--video", str(films))
        if wrong:
            return wrong, said
        import av

        frames = {}
        for path in films.iterdir():
            with av.open(str(path)) as film:
                frames[path.name] = sum(1 for _ in film.decode(video=0))
        return ("" if frames and min(frames.values()) else f"frames of the films: {frames}"), said

    def _asked(self) -> Said:
        from headrace import load_policy

        env = _made(self._plain["environment"])
        self._vectorised = hasattr(env, "num_envs")
        one_agent = self._kept.environment["kind"] == "gymnasium"
        for name, observation, mask, space in _at_reset(env) if one_agent else self._of_agents(env):
            policy = load_policy(self._run, behavior=name)
            for deterministic in (True, False):
                action, _ = policy.predict(observation, deterministic, mask=mask)
                for one in action if self._vectorised else [action]:
                    if not space.contains(one):
                        return f"{one!r} ({type(one).__name__}) is not of {space}", ""
        if one_agent:
            env.step(action)
        return "", ""

    def _of_agents(self, env: Any) -> Iterator[Seen]:
        """What the agents of an environment of PettingZoo see that may act first."""
        roles = self._kept.environment.get("behaviors", {"*": "Zoo"})
        observations = env.reset(seed=0)
        seen, infos = observations or ({env.agent_selection: env.observe(env.agent_selection)}, env.infos)
        for agent, observation in seen.items():
            role = next(role for pattern, role in roles.items() if fnmatch(str(agent), pattern))
            name = role if isinstance(role, str) else role.get("behavior", "Zoo")
            yield name, observation, infos[agent].get("action_mask"), env.action_space(agent)


def _made(environment: Mapping[str, Any]) -> Any:
    """Make an environment as its users do, without anything of Headrace."""
    options = {key: value for key, value in environment.get("options", {}).items() if key != "vectorization_mode"}
    name = environment.get("id")
    if name is None:
        make = _named(environment["factory"])
        if "num_envs" in signature(make).parameters:
            options["num_envs"] = environment["num_envs"]
        env = make(**options)
    elif environment["kind"] == "pettingzoo":
        if "/" in name:
            return importlib.import_module("pettingzoo").make("aec", name, **options)
        module = importlib.import_module(name)
        parallel = environment.get("api") != "aec" and hasattr(module, "parallel_env")
        env = (module.parallel_env if parallel else module.env)(**options)
    else:
        import gymnasium

        env = gymnasium.make(name, **options)
    for wrapper in environment.get("wrappers", []):
        use, rest = (wrapper, {}) if isinstance(wrapper, str) else (wrapper["use"], wrapper.get("with", {}))
        env = _named(use)(env, **rest)
    return env


def _at_reset(env: Any) -> Iterator[Seen]:
    observation, info = env.reset(seed=0)
    mask = info.get("action_mask") if isinstance(info, dict) else None
    yield "Zoo", observation, mask, getattr(env, "single_action_space", env.action_space)


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def visit(kept: Kept, processes: bool) -> dict[str, Said]:
    """Take each step, as far as there is a policy for it; what was wrong with it, and what it said, by step."""
    results: dict[str, Said] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some packages leave files where they are
        for name, step in Visit(kept, Path(folder), processes).steps().items():
            try:
                results[name] = step()
            except Exception:
                results[name] = ("it raised", traceback.format_exc())
            if name == "train" and results[name][0]:
                break
    return results


def visited(package: str, number: int, processes: bool) -> dict[str, Said]:
    """Call `visit` in a process of its own, without a screen.

    Raises:
        AssertionError: if the process ends in another way than it should.
    """
    screens = {"MUJOCO_GL": "egl", "PYGLET_HEADLESS": "1", "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "agg"}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, __file__, package, str(number), *["--processes"] * processes],
        env={**screens, **os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    marked = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert marked, f"status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(marked[0])


if __name__ == "__main__":
    (chosen,) = [package for package in packages() if package.name == sys.argv[1]]
    found = visit(chosen.environments[int(sys.argv[2])], "--processes" in sys.argv)
    print(f"\n{MARK}{json.dumps(found)}", flush=True)
    os._exit(0)  # what some packages do at the end of a process is none of a visit's
