"""What setup.cfg can't say: where the packages lie, what is compiled, and the README's links as they are elsewhere."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_py import build_py

PARTS = ("config", "queues", "stages", "pipeline")
"""Folders, each of which is a package below `headrace`."""
ROOT = Path(__file__).parent


def readme() -> str:
    """Return the README, whose links lead to files of the repository, as a package index can show it."""
    described = ConfigParser()
    described.read(ROOT / "setup.cfg", encoding="utf-8")
    address = described["metadata"]["url"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{address}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{address}/blob/main/", text)


class WithStatistics(build_py):
    """Puts the page of the documentation that explains the statistics beside the live page, which shows it."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:  # it is read where it lies
            return
        self.copy_file(str(ROOT / "docs/statistics.md"), f"{self.build_lib}/headrace/pipeline/monitor/page")


kernels = Extension(
    "headrace.stages.policy.network.kernels._kernels",
    ["stages/policy/network/kernels/kernels.c"],
    depends=["stages/policy/network/kernels/vectors.h"],
    extra_compile_args=["-O3"],
    optional=True,  # without a compiler, or with one that lacks GCC's vectors, NumPy computes the same
)

# Folders of data are among them, as Python could import those too.
namespaces = [name for part in PARTS for name in find_namespace_packages(str(ROOT), include=[part, f"{part}.*"])]
setup(
    long_description=readme(),
    packages=["headrace", *(f"headrace.{name}" for name in namespaces if "__pycache__" not in name)],
    package_dir={"headrace": "headrace", **{f"headrace.{part}": part for part in PARTS}},
    ext_modules=[kernels],
    cmdclass={"build_py": WithStatistics},
)
