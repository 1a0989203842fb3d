"""The `environment` section: what to run when it is not a Unity build."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from config.errors import Finding
from config.fields import Flag, Int, PlainMap, Reference, Settings, Text, as_tuple, not_yet, report

_INSTEAD = "use 'builtin' or 'gymnasium'"
_SHORT = ("vector", "image", "set", "goal")


def _short_form(value: Any) -> Any:
    """Take `camera: image` for `camera: {kind: image}`, and `goal` for a vector that tells the goal."""
    if not isinstance(value, str):
        return value
    if value not in _SHORT:
        words = ", ".join(f"'{word}'" for word in _SHORT)
        raise ValueError(
            f"'{value}' is not known; expected one of {words}, or a map such as {{kind: set, goal: false}}"
        )
    return {"goal": True} if value == "goal" else {"kind": value}


class ObservationSettings(Settings):
    """What one of the environment's observations is taken for. Short: only `vector`, `image`, `set` or `goal`."""

    kind: Literal["vector", "image", "set"] | None = Field(
        None,
        description="`vector`: numbers in a row; `image`: of rank 2, 3 or 4 (stacked frames); `set`: rows that are "
        "things of one sort, in no order; null: as its space suggests.",
    )
    goal: Flag = Field(
        False,
        description="Whether it tells the agent's goal (see `goal_conditioning_type`). Where nothing is said about it, "
        "a vector `desired_goal` does.",
    )
    channels: Literal["first", "last"] | None = Field(
        None, description="Where an image has its channels; null: in its smallest dimension."
    )
    max_entities: Int | None = Field(
        None, gt=0, description="Most things in a set of no fixed size (a `Sequence` space); null: 32."
    )


class WrapperSettings(Settings):
    """A wrapper round each single environment."""

    use: Reference = Field(
        description="`module:callable` that takes an environment first, such as "
        "`gymnasium.wrappers:TimeAwareObservation`; modules beside the YAML are found."
    )
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for it.")


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
    wrappers: Annotated[tuple[WrapperSettings, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Wrappers round each single environment, the innermost first."
    )
    observations: dict[Text, Annotated[ObservationSettings, BeforeValidator(_short_form)]] = Field(
        default_factory=dict,
        description="What observations are taken for, by name: the key in a Dict, the index in a Tuple, with dots "
        "where they are nested (`state.position`); `observation` where there is only one.",
    )
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
        findings = [
            Finding((name,), "does not go with kind 'builtin', only with kind 'gymnasium'; leave it out", (("kind",),))
            for name in ("wrappers", "observations")
            if getattr(self, name)
        ]
        return [*findings, *self._about_builtin_game()]

    def _about_builtin_game(self) -> list[Finding]:
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
