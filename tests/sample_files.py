"""Configuration files in the forms that versions of ML-Agents had, and what they are to be loaded with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent / "config" / "samples"
FILES = sorted(path for path in SAMPLES.rglob("*") if path.suffix in (".yaml", ".json"))

BESIDE: list[tuple[str, dict[str, Any]]] = [
    ("v0.10/trainer_config.yaml", {"curriculum": SAMPLES / "v0.10" / "curricula" / "wall_jump"}),
    ("v0.10/trainer_config.yaml", {"curriculum": SAMPLES / "v0.10" / "curricula" / "wall_jump", "lesson": 2}),
    (
        "v0.13/trainer_config.yaml",
        {"curriculum": SAMPLES / "v0.13" / "curricula", "sampler": SAMPLES / "v0.13" / "3dball_randomize.yaml"},
    ),
    ("v0.15/mixed.yaml", {"curriculum": SAMPLES / "v0.15" / "wall_jump.yaml"}),
    ("v1.1/everything.yaml", {"lesson": 1}),
]
"""Files that were given together with others."""


def name_of(path: Path) -> str:
    """A sample's name in tests."""
    return str(path.relative_to(SAMPLES))
