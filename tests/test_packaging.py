"""What gets installed: the packages and nothing beside them, the command, and the versions it is tested with."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headrace.paths import PARTS

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (".py", ".yaml", ".proto", ".binpb", ".html", ".css", ".js", ".svg", ".txt")
"""Endings of the files that are installed."""
MAKES = re.compile(r"^([a-z]+):", flags=re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")

SHOW_WHERE = """
import runpy, sys
from importlib import import_module
runpy.run_path(sys.argv[1], run_name="not the main module")
print(*(import_module(f"headrace.{part}").__file__ for part in ("config", "queues", "stages", "pipeline")), sep="\\n")
for name in ("headrace.headrace", "config"):
    try:
        import_module(name)
    except ModuleNotFoundError:
        continue
    print(name, "is there too")
"""
INSTALLED_COMMAND = """
import sys
from importlib.metadata import distribution
(point,) = distribution("headrace").entry_points.select(group="console_scripts", name="run-pipeline")
main = point.load()
print(sys.modules["headrace"].__file__)
sys.exit(main(sys.argv[1:]))
"""


# Checkout. -----------------------------------------------------------------------------------------------------------


def without_our_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from: building leaves files behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*PARTS, "headrace", "bin"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "LICENSE-uPlot", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg", "setup.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "statistics.md", copy / "docs")
    return copy


@pytest.fixture(scope="module")
def linkless(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout as git makes it where links can't be: plain files with the targets' names."""
    copy = tmp_path_factory.mktemp("linkless") / "checkout"
    shutil.copytree(checkout, copy, symlinks=True)
    for part in PARTS:
        (copy / "headrace" / part).unlink()
        (copy / "headrace" / part).write_text(f"../{part}")
    return copy


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["checkout", "linkless"])
def test_the_checkouts_command_uses_the_checkouts_packages_from_anywhere(kind, request, tmp_path):
    """The command works if only the dependencies are installed."""
    root = request.getfixturevalue(kind)
    done = subprocess.run(
        [sys.executable, "-c", SHOW_WHERE, root / "bin" / "run-pipeline"],
        cwd=tmp_path,
        env=without_our_path(),
        capture_output=True,
        text=True,
        check=True,
    )
    below = root / "headrace" if kind == "checkout" else root
    assert done.stdout.splitlines() == [str(below / part / "__init__.py") for part in PARTS]


def trained_by(command: Sequence[object], example: Path, folder: Path) -> str:
    """What a short run on CartPole, with an actor in a process, prints in a folder with modules of common names."""
    for name in ("config", "pipeline"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('of the working directory')")
    settings = ("behaviors.CartPole.max_steps=300", "pipeline.hosts.learners.kind=inline", "environment.num_envs=2")
    done = subprocess.run(
        [*map(str, command), str(example), *(word for setting in settings for word in ("--set", setting))],
        cwd=folder,
        env=without_our_path(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
    (model,) = folder.glob("results/cartpole/CartPole.onnx")
    assert model.stat().st_size > 0
    return done.stdout


@pytest.mark.lengthy
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
    assert "-m pip install -c constraints.txt -e '.[train]'" in done.stderr


# Wheel. --------------------------------------------------------------------------------------------------------------


def built(checkout: Path, folder: Path, what: str) -> Path:
    """What the backend itself builds, as the network may not be there."""
    build = f"from setuptools import build_meta; build_meta.build_{what}({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("headrace-*")
    return archive


@pytest.fixture(scope="module")
def wheel(linkless: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built where the links that help editors are not."""
    return built(linkless, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.mark.lengthy
def test_a_wheel_holds_one_package_its_types_and_the_examples(wheel, checkout):
    below = {part: f"headrace/{part}" for part in PARTS} | {"headrace": "headrace"}
    wanted = {
        f"{there}/{path.relative_to(checkout / here).as_posix()}"
        for here, there in below.items()
        for path in (checkout / here).rglob("*")
        if path.suffix in SHIPPED or path.name in ("py.typed", "schema.json")
    }
    assert {"headrace/py.typed", "headrace/config/examples/cartpole.yaml"} < wanted
    assert "headrace/pipeline/monitor/page/index.html" in wanted
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    extension = f"headrace/stages/policy/network/kernels/_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    # Where it can be compiled; elsewhere NumPy does what is compiled.
    if shutil.which("cc") and Path(sysconfig.get_path("include"), "Python.h").is_file():
        wanted.add(extension)
    assert held == wanted | {"headrace/pipeline/monitor/page/statistics.md"}  # of the documentation


def test_a_wheel_states_licences_commands_and_links_that_work_elsewhere(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    for command in ("run-pipeline", "mlagents-learn"):
        assert f"{command} = headrace.pipeline.cli:main" in texts["entry_points.txt"]
    assert texts["top_level.txt"].split() == ["headrace"]
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "MIT" in texts["LICENSE-uPlot"]
    assert re.search(r"^License-Expression: Apache-2.0 AND MIT$", texts["METADATA"], flags=re.MULTILINE)
    for line in ("Requires-Python: >=3.11", "Author: The Headrace authors", "Project-URL: Changelog, https://"):
        assert f"\n{line}" in texts["METADATA"]
    assert not [target for target in LINK.findall(texts["METADATA"]) if not target.startswith("https://")]


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel(checkout, wheel, tmp_path):
    archive = built(checkout, tmp_path, "sdist")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    (tmp_path / "again").mkdir()
    again = built(root, tmp_path / "again", "wheel")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what installing the wheel puts there, but for the scripts."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.lengthy
def test_the_installed_command_trains_in_processes_of_what_is_installed(site, tmp_path):
    """From any folder, next to a user's modules, and with other distributions in the installation folder."""
    (site / "config").mkdir()
    (site / "config" / "__init__.py").write_text("raise ImportError('of another project')")
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{INSTALLED_COMMAND}"]

    said = trained_by(command, site / "headrace/config/examples/cartpole.yaml", tmp_path)

    assert f"{site / 'headrace' / '__init__.py'}\n" in said


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
        for extra in requirement.extras or {""}:
            waiting += needed_by(requirement.name, extra)


@cache
def needed_by(name: str, extra: str) -> Sequence[Requirement]:
    """What a package with an extra needs on this machine; nothing if it is not installed."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    needed = map(Requirement, lines)
    return [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]


def test_constraints_are_exact_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    stray = [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not stray, "no local versions, addresses or paths: the file has to serve on every machine"


@pytest.mark.lengthy
def test_everything_that_gets_installed_is_pinned():
    pinned = pins()
    for requirement in with_what_they_need([each for extra in wanted().values() for each in extra]):
        name = canonicalize_name(requirement.name)
        if name == "headrace":  # an extra that joins others, each of which is looked at by itself
            continue
        assert name in pinned, f"{requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pinned[name]), f"{requirement}, but constraints.txt has {pinned[name]}"


def test_a_policy_server_installs_no_torch_and_training_does():
    def installed(*extras):
        requirements = [each for extra in ("", *extras) for each in wanted()[extra]]
        return {canonicalize_name(requirement.name) for requirement in with_what_they_need(requirements)}

    assert "torch" not in installed("serve", "onnx")
    assert "onnxruntime" in installed("onnx")
    assert "torch" in installed("train")
    assert "train" in next(iter(wanted()["all"])).extras


def test_every_version_of_python_that_is_named_is_tested_in_public():
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg", encoding="utf-8")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    named = re.findall(r"Python :: (3\.\d+)", read["metadata"]["classifiers"])
    assert [jobs[job]["strategy"]["matrix"]["python"] for job in ("linux", "elsewhere")] == [named, named]


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
