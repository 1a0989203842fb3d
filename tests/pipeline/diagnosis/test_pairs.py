"""Runs with one planted fault each, beside the same run without it: the fault is named first, and nothing else is."""

from __future__ import annotations

import pytest
from diagnosis_tasks import PAIRS
from runs import run_here

from headrace.pipeline.diagnosis.report import diagnose_run

ALSO_RIGHT = {"action-ignored": {"obs-frozen"}, "memory-none": {"memory-short"}, "mask-forbids": {"reward-never"}}
"""Causes that no measurement can tell from the planted one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_planted_fault_is_named_first_and_its_sound_twin_has_no_finding(name, tmp_path):
    cause = name.partition("-of-")[0]
    sick, sound = (
        diagnose_run(run_here(plain, tmp_path, which).folder, probes=True)
        for plain, which in zip(PAIRS[name], ("sick", "sound"), strict=True)
    )
    assert sick.findings
    assert sick.findings[0].cause in {cause} | ALSO_RIGHT.get(cause, set())
    assert sound.findings == []
