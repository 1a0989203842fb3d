"""The `inference` section: how long trained policies are played with `--inference`."""

from __future__ import annotations

from pydantic import Field

from config.fields import Int, Settings


class InferenceSettings(Settings):
    """The `inference` section: play with trained policies; without `checkpoint_settings.inference` it has no effect."""

    episodes: Int | None = Field(
        None,
        gt=0,
        description="Episodes of each behaviour and team after which the run ends with their scores; null: Ctrl-C ends "
        "it.",
    )
