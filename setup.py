"""The packages: the folders beside this file are installed as `headrace.config`, `headrace.queues` and so on.

All else is described in setup.cfg.
"""

from setuptools import find_packages, setup

PARTS = ("config", "queues", "stages", "pipeline")

setup(
    packages=[
        "headrace",
        *(
            f"headrace.{name}"
            for part in PARTS
            for name in (part, *(f"{part}.{inner}" for inner in find_packages(part)))
        ),
    ],
    package_dir={"headrace": "headrace", **{f"headrace.{part}": part for part in PARTS}},
)
