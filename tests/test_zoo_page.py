"""docs/environments.md says what tests/zoo/packages holds, and that is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from zoo_packages import PACKAGES, packages
from zoo_page import page

from headrace.config import RunConfig

KEPT = [(package, one) for package in packages() for one in package.environments]


def test_the_page_is_what_the_packages_say():
    written = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
    assert written == page(), "python tests/zoo_page.py > docs/environments.md"


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.name)
def test_a_package_has_exact_versions_or_a_reason_for_its_absence(package):
    assert (PACKAGES / f"{package.name}.yaml").exists()
    assert bool(package.environments) != bool(package.absent)
    assert all(str(pin.specifier).startswith("==") for pin in package.pins)
    assert package.absent or package.version


@pytest.mark.parametrize("one", [one for _, one in KEPT], ids=lambda one: one.name)
def test_an_environment_has_a_configuration_and_a_reason_for_what_is_refused(one):
    RunConfig.from_plain(one.configuration())
    assert bool(one.refused) == bool(one.why)
    assert one.refused.keys() <= {"validate", "film", "predict"}
    assert "validate" not in one.refused or len(one.refused) == 1
