"""The `environment` section: what to run when it is not a Unity build."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from config.errors import Finding
from config.fields import Int, PlainMap, Reference, Settings, Text, not_yet, report

_INSTEAD = "use 'builtin' or 'gymnasium'"


class EnvironmentSettings(Settings):
    """The environment that the agents act in. ML-Agents has no such section; it always runs Unity."""

    kind: Annotated[
        Literal["builtin", "gymnasium"], not_yet(pettingzoo=_INSTEAD, mlagents=_INSTEAD, unity=_INSTEAD)
    ] = Field(description="`builtin`: a game that comes with this package; `gymnasium`: any Gymnasium environment.")
    id: Text | None = Field(
        None, min_length=1, description="Name of the environment, such as `CartPole-v1` or `Volley`."
    )
    factory: Reference | None = Field(
        None, description="`module:callable` that makes a Gymnasium environment; instead of `id`."
    )
    num_envs: Int = Field(
        1,
        gt=0,
        description="Environment instances in each actor.",
        json_schema_extra={"default_text": "`env_settings.num_envs`"},
    )
    options: PlainMap = Field(default_factory=dict, description="Keyword arguments for the environment.")
    behavior: Text | None = Field(
        None,
        min_length=1,
        description="Behaviour name of an environment that has only one kind of agent.",
        json_schema_extra={"default_text": "the only key of `behaviors`"},
    )

    @model_validator(mode="after")
    def _which(self) -> EnvironmentSettings:
        report(self._about_gymnasium() if self.kind == "gymnasium" else self._about_builtin())
        return self

    def _about_gymnasium(self) -> list[Finding]:
        if self.id is None and self.factory is None:
            message = "says neither what 'id' nor what 'factory' to make; add 'id: CartPole-v1' or the like"
            return [Finding((), message, (("id",), ("factory",)))]
        if self.id is not None and self.factory is not None:
            return [Finding(("factory",), "stands beside 'id'; keep one of the two", (("id",),))]
        return []

    def _about_builtin(self) -> list[Finding]:
        if self.factory is not None:
            message = "does not go with kind 'builtin'; expected 'id', or kind 'gymnasium'"
            return [Finding(("factory",), message, (("kind",),))]
        if self.id is None:
            return [Finding((), "needs 'id', the name of the built-in game, such as 'Volley'", (("id",),))]
        return []


class EvaluationSettings(Settings):
    """The `evaluation` section: deterministic play, beside training, on environments of its own."""

    every: Int = Field(gt=0, description="Trainer steps between evaluations.")
    episodes: Int = Field(20, gt=0, description="Episodes in each evaluation.")
