"""What gets installed: the packages and nothing beside them, the command, and the versions it is tested with."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("config", "headrace", "pipeline", "queues", "stages")
EXTRAS = (
    "",
    "atari",
    "box2d",
    "mujoco",
    "pettingzoo",
    "league",
    "mlflow",
    "onnx",
    "peers",
    "plot",
    "ray",
    "video",
    "wandb",
    "web",
    "dev",
)
"""Of setup.cfg; empty: what is always needed."""
SHIPPED = (".py", ".yaml", ".proto", ".binpb", ".html", ".css", ".js", ".svg", ".txt")
"""Endings of the files that are installed."""
MAKES = re.compile(r"^([a-z]+):", flags=re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")

SHOW_WHERE = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="not the main module")
import config, headrace, pipeline, queues, stages
print(*(package.__file__ for package in (config, headrace, pipeline, queues, stages)), sep="\\n")
"""
INSTALLED_COMMAND = """
import sys
from importlib.metadata import distribution
(point,) = distribution("headrace").entry_points.select(group="console_scripts", name="run-pipeline")
main = point.load()
print(sys.modules["pipeline"].__file__)
sys.exit(main(sys.argv[1:]))
"""


# Names. --------------------------------------------------------------------------------------------------------------


def intruders(package: str) -> list[str]:
    """Other distributions on the path that have a package of this name too."""
    owners = set(metadata.packages_distributions().get(package, []))
    return sorted(f"{name} {metadata.version(name)}" for name in owners if canonicalize_name(name) != "headrace")


def complaint(package: str) -> str:
    return (
        f"`import {package}` is ambiguous: {', '.join(intruders(package))} has a package of that name as well, and "
        "whichever is installed last overwrites the other. Uninstall it and install headrace again, or give headrace a "
        "virtual environment of its own"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_import_names_are_ours(package):
    assert not intruders(package), complaint(package)
    found = Path(str(import_module(package).__file__))
    assert found.parent == ROOT / package, f"`import {package}` finds {found}, which is not of this checkout"


def test_a_distribution_with_one_of_our_names_is_named(tmp_path, monkeypatch):
    intruder = tmp_path / "config-0.5.1.dist-info"
    intruder.mkdir()
    (intruder / "METADATA").write_text("Metadata-Version: 2.1\nName: config\nVersion: 0.5.1\n")
    (intruder / "RECORD").write_text("config/__init__.py,,\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/__init__.py").touch()  # Python 3.13 counts only what is there
    monkeypatch.syspath_prepend(tmp_path)
    assert "config 0.5.1" in intruders("config")
    assert "config 0.5.1 has a package of that name" in complaint("config")
    assert not intruders("stages")


# Checkout. -----------------------------------------------------------------------------------------------------------


def without_our_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from: building leaves files behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*PACKAGES, "bin"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_the_checkouts_command_uses_the_checkouts_packages_from_anywhere(checkout, tmp_path):
    """So it works with nothing installed but the dependencies, whatever else is installed."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_WHERE, checkout / "bin" / "run-pipeline"],
        cwd=tmp_path,
        env=without_our_path(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [Path(line) for line in done.stdout.split()] == [checkout / name / "__init__.py" for name in PACKAGES]


def test_a_missing_dependency_is_named_with_what_to_do(checkout, tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", checkout / "bin" / "run-pipeline", "--help"],  # -S: no site-packages
        cwd=tmp_path,
        env=without_our_path(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.match(r"run-pipeline: .* lacks the package '\w+'; install .*", done.stderr)
    assert "-m pip install -c constraints.txt -e ." in done.stderr


def test_a_missing_dependency_that_is_imported_late_is_named_too(checkout, tmp_path):
    without = (
        "import runpy, sys; sys.modules['msgpack'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", without, checkout / "bin" / "run-pipeline", checkout / "config/examples/cartpole.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert re.match(r"run-pipeline: .* lacks the package 'msgpack'; install .*", done.stderr)


# Wheel. --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the backend itself, as the network may not be there."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("headrace-*-py3-none-any.whl")
    return built


def test_a_wheel_holds_the_packages_their_types_and_the_examples(wheel, checkout):
    wanted = {
        path.relative_to(checkout).as_posix()
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    }
    assert {f"{package}/py.typed" for package in PACKAGES} < wanted
    assert {"config/examples/cartpole.yaml", "pipeline/monitor/page/index.html"} < wanted
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_a_wheel_states_licence_and_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    for command in ("run-pipeline", "mlagents-learn"):
        assert f"{command} = headrace.pipeline.cli:main" in texts["entry_points.txt"]
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"^License(-Expression)?: Apache-2.0$", texts["METADATA"], flags=re.MULTILINE)
    assert "Requires-Python: >=3.11" in texts["METADATA"]


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what installing the wheel puts there, but for the scripts."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def installed_command(site: Path, folder: Path, *arguments: str) -> str:
    """What the installed command prints in a folder, after the place where it is installed."""
    example = site / "config/examples/cartpole.yaml"
    done = subprocess.run(
        [sys.executable, "-P", "-c", INSTALLED_COMMAND, example, *arguments],  # -P: as with a script
        cwd=folder,
        env=without_our_path() | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
    assert f"{site / 'pipeline' / '__init__.py'}\n" in done.stdout
    return done.stdout


def test_the_installed_command_works_from_anywhere(site, tmp_path):
    assert "\nbehavior CartPole:" in installed_command(site, tmp_path, "--validate")


@pytest.mark.lengthy
def test_the_installed_command_trains_in_processes_of_what_is_installed(site, tmp_path):
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("raise ImportError('of the working directory')")
    settings = ("behaviors.CartPole.max_steps=300", "pipeline.hosts.learners.kind=inline", "environment.num_envs=2")
    installed_command(site, tmp_path, *(word for setting in settings for word in ("--set", setting)))
    (model,) = tmp_path.glob("results/cartpole/CartPole.onnx")
    assert model.stat().st_size > 0


# Versions. -----------------------------------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    """Version by canonical name, as constraints.txt has them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parts = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in parts}


def wanted() -> Mapping[str, list[Requirement]]:
    """What setup.cfg asks for, by extra; `""` is the core."""
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg", encoding="utf-8")
    texts = {"": read["options"]["install_requires"], **read["options.extras_require"]}
    return {extra: [Requirement(line) for line in text.split("\n") if line.strip()] for extra, text in texts.items()}


def with_what_they_need(requirements: list[Requirement]) -> Iterator[Requirement]:
    """These requirements and, as far as installed packages tell, what those need in turn on this machine."""
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        yield requirement
        try:
            lines = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            continue
        for needed in map(Requirement, lines):
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)


def test_constraints_are_exact_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    stray = [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not stray, "no local versions, addresses or paths: the file has to serve on every machine"


@pytest.mark.parametrize("extra", EXTRAS)
def test_everything_that_gets_installed_is_pinned(extra):
    pinned = pins()
    for requirement in with_what_they_need(wanted()[extra]):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pinned[name]), f"{requirement}, but constraints.txt has {pinned[name]}"


def test_every_extra_is_looked_at():
    assert set(wanted()) == set(EXTRAS)


# Pages. --------------------------------------------------------------------------------------------------------------


def test_the_readmes_commands_are_targets_of_the_makefile():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(MAKES.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    asked = set(re.findall(r"^make ([a-z]+)", readme, flags=re.MULTILINE))
    assert {"train", "test"} <= asked <= targets


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    inside = [target for target in LINK.findall(text) if not target.startswith(("http://", "https://"))]
    assert not [target for target in inside if not (ROOT / page).parent.joinpath(target).exists()]


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(LINK.findall(index)), "docs/README.md has to lead to each page beside it"
