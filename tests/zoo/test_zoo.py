"""Environments of other people's packages: each that is installed does what docs/environments.md says.

The first environment of a package is visited by the real command, its hosts in processes, all others in one process each.
"""

from __future__ import annotations

import pytest
from zoo_packages import STEPS, packages
from zoo_visit import PATIENCE_S, visited

VISITS = [(package, number) for package in packages() for number in range(len(package.environments))]


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 60)
@pytest.mark.parametrize(
    ("package", "number"), VISITS, ids=[f"{package.name}: {package.environments[n].name}" for package, n in VISITS]
)
def test_an_environment_does_what_the_table_says(package, number):
    if missing := package.missing():
        pytest.skip(missing)
    kept = package.environments[number]
    found = visited(package.name, number, processes=number == 0)
    unlike = kept.mistakes(found)
    assert not unlike, "\n".join(unlike)
    assert list(found) == list(STEPS[: 2 if "validate" in kept.refused else len(STEPS)])
