"""The `inference` section: how long trained policies are played with `--inference`, and who sees it."""

from __future__ import annotations

from pydantic import Field

from headrace.config.fields import Flag, Int, Settings, Text

USUAL_FILMED = 3
"""Episodes that are filmed where `episodes` says nothing: a film has to end."""


class InferenceSettings(Settings):
    """The `inference` section: play with trained policies; without `checkpoint_settings.inference` it has no effect."""

    episodes: Int | None = Field(
        None,
        gt=0,
        description="Episodes of each behaviour and team after which the run ends with their scores; null: Ctrl-C ends "
        f"it (with `video`: {USUAL_FILMED}).",
    )
    video: Text | None = Field(
        None, min_length=1, description="Folder for a film of each episode, of one instance; null: none is filmed."
    )
    watch: Flag = Field(False, description="Open the environment's own window (`render_mode: human`), of one instance.")

    @property
    def wanted(self) -> int | None:
        """Episodes of each behaviour and team; None for as many as there are until somebody ends it."""
        return USUAL_FILMED if self.episodes is None and self.video is not None else self.episodes
