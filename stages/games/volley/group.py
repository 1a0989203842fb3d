"""Volley as an environment group: points, matches and serves on top of `physics`, in the pipeline's columns.

A match is an episode: the first team with `points_to_win` points wins. When the time is up, the leading team wins the
current rally and the match; with equal points the match is truncated as a draw. The final reward therefore always has
the sign of the result, as ML-Agents' self-play expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Floats
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.parameters import EpisodeParameters, check_parameter_names
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.games.scene import Display, Scene, Shape
from headrace.stages.games.volley import scene as screen
from headrace.stages.games.volley.physics import (
    BALL_GRAVITY,
    HOME,
    OBSERVATION_SIZE,
    PLAYER_RADIUS,
    SERVE_HEIGHT,
    SERVE_RISE,
    SERVE_SPEED,
    TICK_S,
    VX,
    VY,
    Courts,
    X,
    Y,
    advance,
    observe,
)

if TYPE_CHECKING:
    from headrace.stages.games.drawing import SceneImages

ACTIONS = ActionSpec(discrete_branches=(3, 2))
"""Branch 0 is back, stay or forward (towards the net); branch 1 is stay down or jump."""

PARAMETERS: Mapping[str, str] = {
    "ball_gravity": f"acceleration of the falling ball, {BALL_GRAVITY:g} m/s² by default",
    "serve_speed": f"maximum horizontal speed of a serve, {SERVE_SPEED[1]:g} m/s by default",
}
"""Environment parameters, which are drawn for each match, with their descriptions."""

_MOVES = np.array([-1, 0, 1], dtype=np.float32)
_JUMPS = np.array([False, True])


class VolleyGroup:
    """`num_envs` courts of one-against-one volleyball, stepped together.

    Args:
        num_envs: number of courts.
        points_to_win: number of points that win a match.
        time_limit_s: seconds of play after which the points decide a match, or the match is truncated as a draw.
        frame_skip: physics ticks (of 0.02 s) per decision.
        behavior: behaviour name; the ids are `<behavior>?team=0` and `<behavior>?team=1`.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        points_to_win: int = 5,
        time_limit_s: float = 60.0,
        frame_skip: int = 6,
        behavior: str = "Volley",
    ) -> None:
        options = {"num_envs": num_envs, "points_to_win": points_to_win, "frame_skip": frame_skip}
        for name, value in options.items():
            if value < 1:
                raise ValueError(f"VolleyGroup: {name} is {value}; it must be at least 1")
        self.match_decisions = int(time_limit_s / (TICK_S * frame_skip))
        if self.match_decisions < 1:
            raise ValueError(
                f"VolleyGroup: time_limit_s is {time_limit_s}, shorter than one "
                f"decision ({TICK_S * frame_skip} s); raise it or lower frame_skip"
            )
        self.num_envs = num_envs
        self.points_to_win = points_to_win
        self.frame_skip = frame_skip
        self.on_tick: Callable[[], None] | None = None
        """Called after each physics tick and after each point.

        Videos therefore have more frames than the game has decisions.
        """
        self.behavior_ids = (f"{behavior}?team=0", f"{behavior}?team=1")
        observations = (ObservationSpec("court", (OBSERVATION_SIZE,)),)
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior_id: BehaviorSpec(behavior_id, observations, ACTIONS) for behavior_id in self.behavior_ids
        }
        self.courts = Courts.empty(num_envs)
        self.score = np.zeros((2, num_envs), dtype=np.int32)
        """[2, C] each team's points in the running match."""
        self._decisions = np.zeros(num_envs, dtype=np.int32)
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        self._env_ids = np.arange(num_envs, dtype=np.int32)
        self._random = np.random.default_rng()
        self._images: SceneImages | None = None
        self._parameters: EpisodeParameters | None = None
        self._ball_gravity: Floats | float = BALL_GRAVITY
        """Gravity of the ball in m/s²: one value for all running matches, or [C]."""
        self._serve_speed: Floats | None = None
        """[C] maximum serve speed in the running matches; None for the default."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Draw these parameters at the start of each match.

        Raises:
            StageError: if a parameter is not among `PARAMETERS`.
        """
        check_parameter_names(parameters, PARAMETERS, "Volley")
        self._parameters = parameters
        if "ball_gravity" in parameters.values:
            self._ball_gravity = np.zeros(self.num_envs, np.float32)
        if "serve_speed" in parameters.values:
            self._serve_speed = np.zeros(self.num_envs, np.float32)

    def reset(self, seed: int | None = None) -> StepResult:
        """Start a new match on every court; without a seed, the random generator continues from its current state."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.score[:] = 0
        self._decisions[:] = 0
        self._episodes[:] = 0
        self._draw_parameters(self._env_ids)
        self._serve(self._env_ids)
        none = self._env_ids[:0]
        return self._result(none, np.zeros(0, np.float32), np.zeros(self.num_envs, np.float32), None)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Play `frame_skip` ticks with each player's decision, then award points, end matches and serve.

        Args:
            actions: keyed by behaviour id; one row per court, in the order of the courts.
        """
        landed = self._play(actions)
        self._decisions += 1
        self.score[0] += landed > 0
        self.score[1] += landed < 0
        if self.on_tick is not None and landed.any():
            self.on_tick()  # before the next serve or match
        lead = np.sign(self.score[0] - self.score[1])
        over = (self.score.max(axis=0) >= self.points_to_win) | (self._decisions >= self.match_decisions)
        ended = np.flatnonzero(over).astype(np.int32)
        rewards = np.where(over, 0, landed).astype(np.float32)
        final_rewards = lead[ended].astype(np.float32)
        final = observe(Courts(self.courts.ball[:, ended], self.courts.players[:, :, ended])) if ended.size else None
        result_lengths = self._decisions[ended] * (self.frame_skip * TICK_S)
        self.score[:, ended] = 0
        self._decisions[ended] = 0
        self._episodes[ended] += 1
        if ended.size:
            self._draw_parameters(ended)
        self._serve(np.flatnonzero(over | (landed != 0)))
        return self._result(ended, final_rewards, rewards, final, result_lengths)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return one court as an RGB image [300, 600, 3]."""
        from headrace.stages.games.drawing import SceneImages  # import Pillow only if images are drawn

        if self._images is None:
            self._images = SceneImages(self.display)
        return self._images.image(self.shapes_with_score(env_id))

    def shapes_with_score(self, env_id: int) -> list[Shape]:
        """Return one court's current appearance, with the score as lamps."""
        return [*self.scene(env_id).shapes, *screen.lamps(self.score[:, env_id], self.points_to_win)]

    @property
    def display(self) -> Display:
        """The fixed parts of a court on a screen."""
        return screen.display(self.behavior_ids, self.points_to_win)

    def scene(self, env_id: int = 0) -> Scene:
        """Return one court's current appearance, as shapes."""
        return screen.scene(self.courts, self.score, self.behavior_ids, env_id)

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def _play(self, actions: Mapping[str, ActionBatch]) -> NDArray[np.int8]:
        """Advance the courts; return [C] the side where the ball first touched the ground, encoded as in `advance`."""
        discrete = np.stack([actions[behavior_id].discrete for behavior_id in self.behavior_ids])
        move, jump = _MOVES[discrete[..., 0]], _JUMPS[discrete[..., 1]]
        landed = np.zeros(self.num_envs, dtype=np.int8)
        for _ in range(self.frame_skip):
            now = advance(self.courts, move, jump, self._ball_gravity)
            np.copyto(landed, now, where=landed == 0)
            if self.on_tick is not None:
                self.on_tick()
        return landed

    def _draw_parameters(self, beginning: NDArray[np.int32]) -> None:
        if self._parameters is None:
            return
        drawn = self._parameters.draw(beginning)
        if isinstance(self._ball_gravity, np.ndarray):
            self._ball_gravity[beginning] = drawn["ball_gravity"]
        if self._serve_speed is not None:
            self._serve_speed[beginning] = drawn["serve_speed"]

    def _serve(self, courts: NDArray[np.signedinteger]) -> None:
        """Send both players home and toss the ball up above the net, towards either side with equal probability."""
        if not courts.size:
            return
        side, speed, rise = self._random.random((3, courts.size), dtype=np.float32)
        ball, players = self.courts.ball, self.courts.players
        players[:, :, courts] = 0.0
        players[X, :, courts] = -HOME
        players[Y, :, courts] = PLAYER_RADIUS
        ball[X, courts] = 0.0
        ball[Y, courts] = SERVE_HEIGHT
        ball[VX, courts] = np.where(side < 0.5, -1, 1) * _between(self._serve_speeds(courts), speed)
        ball[VY, courts] = _between(SERVE_RISE, rise)

    def _serve_speeds(self, courts: NDArray[np.signedinteger]) -> tuple[float | Floats, float | Floats]:
        if self._serve_speed is None:
            return SERVE_SPEED
        fastest = self._serve_speed[courts]
        return np.minimum(np.float32(SERVE_SPEED[0]), fastest), fastest

    def _result(
        self,
        ended: NDArray[np.int32],
        final_rewards: Floats,
        rewards: Floats,
        final: Floats | None,
        match_seconds: NDArray[np.floating] | None = None,
    ) -> StepResult:
        """Return final rows (if any), then a decision row for every court; team 1 gets team 0's rewards negated."""
        now = observe(self.courts)
        truncated = final_rewards == 0
        env_ids = np.concatenate([ended, self._env_ids])
        episode_ids = np.concatenate([self._episodes[ended] - 1, self._episodes])
        all_rewards = np.concatenate([final_rewards, rewards])
        steps = {
            behavior_id: AgentSteps(
                agent_ids=env_ids.astype(np.int64) * 2 + team,
                env_ids=env_ids,
                episode_ids=episode_ids,
                observations=(now[team] if final is None else np.concatenate([final[team], now[team]]),),
                rewards=all_rewards if team == 0 else -all_rewards,
                ended=len(ended),
                terminated=~truncated,
                truncated=truncated,
            )
            for team, behavior_id in enumerate(self.behavior_ids)
        }
        if match_seconds is None or not ended.size:
            return StepResult(steps)
        outcomes = (np.stack([1 + final_rewards, 1 - final_rewards], axis=1) / 2).astype(np.float32)
        return StepResult(steps, GameResults(ended, outcomes), {"Volley/Match Seconds": float(match_seconds.mean())})


def _between(limits: tuple[float | Floats, float | Floats], share: Floats) -> Floats:
    low, high = limits
    return low + (high - low) * share
