"""The `pipeline.supervision` section: how long a part of the run may be silent before a warning, and before its end."""

from __future__ import annotations

from pydantic import Field, model_validator

from headrace.config.errors import Finding
from headrace.config.fields import Float, Settings, report

_WARN = "Seconds of silence before a warning says which of them is silent and in which code."
_END = "Seconds of silence before it is ended"
_MOST_S = 1e6
STARTING_FACTOR = 5
"""What starts, or is no stage, has this many times the limits: most of it is the import of libraries."""
PAUSE_S = 5.0
"""Who looks every second, and looks as late as this, did not run itself: nobody was silent meanwhile."""


class _Silence(Settings):
    """Limits of silence."""

    warn_s: Float
    end_s: Float | None

    @model_validator(mode="after")
    def _in_order(self) -> _Silence:
        if self.end_s is None or self.warn_s <= self.end_s:
            return self
        if not self._given("warn_s"):
            self._fill(warn_s=self.end_s)
        else:
            message = f"{self.end_s:g} is less than warn_s, {self.warn_s:g}: the end would come before its warning"
            report([Finding(("end_s",), message, (("warn_s",),))])
        return self


class ActorSilence(_Silence):
    """Limits of actors."""

    warn_s: Float = Field(20.0, gt=0, le=_MOST_S, description=_WARN)
    end_s: Float | None = Field(
        None,
        gt=0,
        le=_MOST_S,
        description=f"{_END} and, within the restart limits, started again; null: `env_settings.timeout_wait`.",
    )


class LearnerSilence(_Silence):
    """Limits of learners."""

    warn_s: Float = Field(60.0, gt=0, le=_MOST_S, description=f"{_WARN} One long update is silent.")
    end_s: Float | None = Field(
        600.0, gt=0, le=_MOST_S, description=f"{_END} and, within the restart limits, started again; null: never."
    )


class MainSilence(_Silence):
    """Limits of main."""

    warn_s: Float = Field(60.0, gt=0, le=_MOST_S, description=f"{_WARN} With inline hosts it learns and acts itself.")
    end_s: Float | None = Field(600.0, gt=0, le=_MOST_S, description=f"{_END}, and the run with it; null: never.")


class SupervisionSettings(Settings):
    """Silence that is not waiting: for the Editor, for credits, at a full queue, or paused, nobody is silent.

    Before its first word a process has five times as long, and so has what main does outside of stages, such as the
    import of libraries. Inline hosts are a part of main.
    """

    actors: ActorSilence = Field(
        default_factory=ActorSilence,
        description="Hosts of environments, of evaluation, of a replay and of central inference.",
    )
    learners: LearnerSilence = Field(default_factory=LearnerSilence, description="Hosts of trainers.")
    main: MainSilence = Field(default_factory=MainSilence, description="The main process.")
    grace_s: Float = Field(
        60.0,
        gt=0,
        le=_MOST_S,
        description="Seconds that a host may take to end without a sign of progress, once the run ends; then it is "
        "left behind, and killed.",
    )
