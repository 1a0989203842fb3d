"""Programs, YAML and commands of the README and the pages work as they stand there, or the page says why they are not run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_code import BLOCK, PAGES, ROOT, Block, blocks, commands
from run_configs import INLINE, Plain, cartpole
from runs import run_here

from headrace import ConfigError, RunConfig
from headrace.config.behaviors import BehaviorSettings
from headrace.pipeline.command.parser import parser

COMMANDS = ("run-pipeline", "mlagents-learn", ".venv/bin/run-pipeline", "bin/run-pipeline")
ENVIRONMENTS: tuple[Plain, ...] = (
    {"kind": "unity"},
    {"kind": "builtin", "id": "Volley"},
    {"kind": "gymnasium", "id": "CartPole-v1"},
)
BEHAVIORS: tuple[Plain, ...] = (
    {"default_settings": {"trainer_type": "ppo"}},
    {"behaviors": {"Ball": {"trainer_type": "ppo"}}},
)
"""One of each has what a piece of a configuration needs that names none."""
PYTHON = blocks("python")
SHELL = blocks("sh")


def by_place(found: list[Block]) -> Any:
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


# Marks. --------------------------------------------------------------------------------------------------------------


def test_every_fenced_block_with_a_language_is_looked_at():
    known = {"python", "yaml", "sh", "json", "toml", "nginx", "dockerfile", "ini"}
    used = {match["language"] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert used == known
    opened = sum(len(re.findall(r"^ *```\w", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES)
    assert len(blocks(*known)) == opened, "a block is opened and closed with the same indentation"


def test_the_marks_of_blocks_are_valid():
    for block in blocks("python", "yaml", "sh"):
        if block.mark.startswith("run by "):
            test = ROOT / block.mark.removeprefix("run by ")
            assert test.is_file(), f"{block.place}: {block.mark}"
            assert block.page.name in re.sub(r'"\s*/\s*"', "/", test.read_text(encoding="utf-8")), (
                f"{block.place}: {block.mark}"
            )
        else:
            assert not block.mark or re.fullmatch(r"(not run|slow): \S.*", block.mark), f"{block.place}: {block.mark}"


# Data. ---------------------------------------------------------------------------------------------------------------


def wholes(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Configurations that hold a piece of one: of its top, of a behaviour, or of a behaviour's hyperparameters."""
    if not set(found) <= set(RunConfig.model_fields | BehaviorSettings.model_fields):
        found = {"hyperparameters": found}
    if not set(found) <= set(RunConfig.model_fields):
        found = {"behaviors": {"Ball": {"trainer_type": "ppo", **found}}}
    for environment, behaviors in product(ENVIRONMENTS, BEHAVIORS):
        yield {"environment": environment, **({} if "behaviors" in found else behaviors), **found}


@by_place([block for block in blocks("yaml") if block.is_ours])
def test_yaml_is_valid(block):
    mistakes = []
    for whole in wholes(yaml.safe_load(block.text)):
        try:
            RunConfig.from_plain(whole)
        except ConfigError as error:
            mistakes.append(str(error))
        else:
            return
    raise AssertionError("\n".join(mistakes))


@by_place(blocks("json", "toml"))
def test_data_is_of_its_format(block):
    assert json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)


# Commands. -----------------------------------------------------------------------------------------------------------


@by_place(SHELL)
def test_commands_name_options_and_files_that_are_there(block):
    for command in commands(block):
        words = [word for word in shlex.split(command, comments=True) if not word.startswith("$")]
        for operator in ("&&", ">", "|", "&"):
            words = words[: words.index(operator)] if operator in words else words
        if words and words[0] in COMMANDS and "--help" not in words:
            parser().parse_args(words[1:])
        named = [
            word for word in words if re.match(r"(config|examples|benchmarks|tests)/[\w./-]+\.(yaml|py|mjs)$", word)
        ]
        assert not [word for word in named if not (ROOT / word).exists()], command
        if words[1:2] == ["-m"] and words[2].startswith("headrace"):
            assert find_spec(words[2]), command


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as pages take it for granted: `my.yaml`, and two runs of it that have ended, on CartPole."""
    folder = tmp_path_factory.mktemp("world")
    short = cartpole(behaviors__CartPole__max_steps=1000, **INLINE)
    (folder / "my.yaml").write_text(yaml.safe_dump(short), encoding="utf-8")
    run_here(short, folder / "results", "first")
    shutil.copytree(folder / "results" / "first", folder / "results" / "cartpole")
    (folder / "bin").mkdir()
    shim = folder / "bin" / "run-pipeline"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/bin/run-pipeline" "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    here = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(here)


def ran(world: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "PATH": f"{world / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SDL_VIDEODRIVER": "dummy",
        "MPLBACKEND": "agg",
        "BROWSER": "true",
    }
    done = subprocess.run(command, cwd=world, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@by_place([block for block in SHELL if block.is_ours])
def test_commands_run(block, world):
    ran(world, "bash", "-e", "-c", block.text)


# Programs. -----------------------------------------------------------------------------------------------------------


@by_place([block for block in PYTHON if not block.mark.startswith("run by ")])
def test_python_is_python(block):
    compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def pages_to_run(slow: bool) -> Any:
    """By page, the blocks that are run one after the other, in one namespace."""
    found: dict[str, list[Block]] = {}
    for block in PYTHON:
        if block.is_ours and "__main__" not in block.text and block.mark.startswith("slow: ") == slow:
            found.setdefault(block.page.name, []).append(block)
    return pytest.mark.parametrize("written", found.values(), ids=list(found))


def run_all(written: list[Block]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in written:
        exec(compile(block.text, block.place, "exec"), names)


@pytest.mark.lengthy
@pages_to_run(slow=False)
def test_programs_run(written, world):
    run_all(written)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pages_to_run(slow=True)
def test_long_programs_run(written, world):
    run_all(written)


@pytest.mark.lengthy
@by_place([block for block in PYTHON if block.is_ours and "__main__" in block.text])
def test_a_whole_program_runs_as_a_file(block, world):
    (world / "corridor.py").write_text(block.text, encoding="utf-8")
    assert ran(world, sys.executable, "corridor.py").splitlines()[-1] in ("[1 0]", "[1]")
