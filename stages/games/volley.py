"""Volley, a built-in game: one-against-one volleyball on hundreds of courts simultaneously (docs/volley.md).

The physics come first (`Courts`), without points, serves or episodes, and draw no random numbers. Lengths are in
metres, times in seconds. The constants are tuned for short games that skill decides; docs/volley.md describes the
effect of changing each.

The two sides are symmetric bit for bit. Each player's state is kept in the player's own frame, in which the net is at x
= 0, the player's half has x < 0, and forward is +x; the ball uses team 0's frame. Mirroring a court swaps the team axis
and negates the ball's x. Every expression of the physics is written so that floating-point rounding commutes with
mirroring.

An observation is twelve numbers in the player's own frame, the same on both sides of the net. `CourtView` inverts their
scaling for scripted players, which see the same numbers as a trained policy.

A court's appearance on a screen follows: shapes, the players' keys, and their names.

A match is an episode: the first team with `points_to_win` points wins. When the time is up, the leading team wins the
current rally and the match; with equal points the match is truncated as a draw. The final reward therefore always has
the sign of the result, as ML-Agents' self-play expects.

The scripted opponent has human limitations. It sees what a policy sees and keeps no state between decisions. It runs to
where the ball will land, and jumps if the ball is within reach. It does not aim, and its predictions are imperfect: it
reacts only to a ball that has crossed the net, predicts 70 % of the remaining flight (so it is late for fast and
distant balls), and considers only rebounds from the wall behind it.

Axis letters: C courts; the players' arrays have a team axis of size 2 before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, hypot, pi, sin
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.games.group import BuiltinGame
from headrace.stages.games.scene import Display, Scene, Shape, area, choices, disc, stroke

if TYPE_CHECKING:
    from headrace.stages.games.drawing import SceneImages


__all__ = ["ScriptedPlayer", "VolleyGroup"]


TICK_S: Final = 0.02
"""Seconds per physics tick; a decision lasts `frame_skip` ticks."""

HALF_WIDTH: Final = 3.0
"""Distance from the net (x = 0) to either wall."""
CEILING: Final = 2.75
NET_HEIGHT: Final = 0.9
NET_RADIUS: Final = 0.05
"""Radius of the net, which is a post with a round top.

The net consists of all points at most this far from the line from (0, 0) to (0, NET_HEIGHT).
"""

PLAYER_RADIUS: Final = 0.34
PLAYER_SPEED: Final = 2.6
PLAYER_ACCELERATION: Final = 20.0
PLAYER_JUMP: Final = 3.8
"""Upward speed at take-off, for a jump that is 0.72 m high and lasts 0.76 s."""
PLAYER_GRAVITY: Final = 10.0

BALL_RADIUS: Final = 0.2
BALL_GRAVITY: Final = 6.5
"""Gravity of the ball.

It is lower than the players' gravity, because a slowly falling ball gives players time to think.
"""
BALL_MAX_SPEED: Final = 6.5
"""Maximum speed of the ball, below (BALL_RADIUS + NET_RADIUS) / TICK_S, so it can't tunnel through the net."""
BALL_MIN_REBOUND: Final = 3.6
"""Minimum speed at which the ball leaves a player; players are springy, so they can't carry the ball."""

PLAYER_RESTITUTION: Final = 0.95
WALL_RESTITUTION: Final = 0.85
NET_RESTITUTION: Final = 0.6
FLOOR_RESTITUTION: Final = 0.5
"""Restitution of the floor.

It affects only what viewers see, because the rally ends when the ball touches the floor.
"""

HOME: Final = 1.5
"""Distance from the net at which a player waits for the serve."""
SERVE_HEIGHT: Final = 2.0
SERVE_SPEED: Final = (0.7, 2.1)
"""Range of the serve's horizontal speed; the ball starts above the net and flies towards the receiving side."""
SERVE_RISE: Final = (0.4, 1.8)
"""Range of the serve's upward speed."""


X, Y, VX, VY = range(4)
"""Row indices of `Courts.ball` and `Courts.players`."""

_TO_BALL_FRAME = np.array([[1.0], [-1.0]], dtype=np.float32)
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Courts:
    """The state of C courts; `advance` changes the arrays in place."""

    ball: Floats
    """[4, C] the ball's x, y, vx, vy in team 0's frame, in metres and metres per second."""
    players: Floats
    """[4, 2, C] each player's x, y, vx, vy in the player's own frame, in metres and metres per second."""

    @classmethod
    def empty(cls, courts: int) -> Courts:
        """Return courts with all values 0, for a serve to fill in."""
        return cls(np.zeros((4, courts), np.float32), np.zeros((4, 2, courts), np.float32))


def advance(
    courts: Courts, move: Floats, jump: NDArray[np.bool_], ball_gravity: Floats | float = BALL_GRAVITY
) -> NDArray[np.int8]:
    """Move everything by one tick.

    Args:
        courts: changed in place.
        move: [2, C] -1 back, 0 stay, 1 forward, each in the player's own frame.
        jump: [2, C] true to jump if the player stands on the ground.
        ball_gravity: one value for all courts, or [C]; metres per second squared.

    Returns:
        [C] 0 while the ball is in the air, -1 if it touched the ground in team 0's half, 1 in team 1's.
    """
    _move_players(courts.players, move, jump)
    _fly(courts.ball, ball_gravity)
    _bounce_off_players(courts.ball, courts.players)
    _bounce_off_net(courts.ball)
    _limit_speed(courts.ball)
    return _stay_inside(courts.ball)


def _move_players(players: Floats, move: Floats, jump: NDArray[np.bool_]) -> None:
    x, y, vx, vy = players
    gain = PLAYER_ACCELERATION * TICK_S
    vx += np.clip(move * PLAYER_SPEED - vx, -gain, gain)
    x += vx * TICK_S
    stopped = (x > -(PLAYER_RADIUS + NET_RADIUS)) | (x < PLAYER_RADIUS - HALF_WIDTH)
    np.clip(x, PLAYER_RADIUS - HALF_WIDTH, -(PLAYER_RADIUS + NET_RADIUS), out=x)
    vx[stopped] = 0.0
    vy[jump & (y <= PLAYER_RADIUS)] = PLAYER_JUMP
    vy -= PLAYER_GRAVITY * TICK_S
    y += vy * TICK_S
    grounded = y <= PLAYER_RADIUS
    y[grounded] = PLAYER_RADIUS
    vy[grounded] = 0.0


def _fly(ball: Floats, gravity: Floats | float) -> None:
    ball[VY] -= gravity * TICK_S
    ball[:VX] += ball[VX:] * TICK_S


def _bounce_off_players(ball: Floats, players: Floats) -> None:
    """Push the ball out of both players, and make it rebound from each relative to that player's motion."""
    reach = PLAYER_RADIUS + BALL_RADIUS
    dx = ball[X] * _TO_BALL_FRAME - players[X]
    dy = ball[Y] - players[Y]
    distance = np.sqrt(dx * dx + dy * dy)
    touching = distance < reach
    if not touching.any():
        return
    np.maximum(distance, _TINY, out=distance)
    nx, ny = dx / distance, dy / distance
    approach = (ball[VX] * _TO_BALL_FRAME - players[VX]) * nx + (ball[VY] - players[VY]) * ny
    rebound = np.maximum(-PLAYER_RESTITUTION * approach, BALL_MIN_REBOUND)
    kick = np.where(touching, np.maximum(rebound - approach, 0.0), 0.0)
    push = np.where(touching, reach - distance, 0.0)
    # Both teams' contributions are added together before they are added to the ball's state, which survives mirroring
    # exactly.
    _add_from_both(ball[X], push * nx * _TO_BALL_FRAME)
    _add_from_both(ball[Y], push * ny)
    _add_from_both(ball[VX], kick * nx * _TO_BALL_FRAME)
    _add_from_both(ball[VY], kick * ny)


def _add_from_both(row: Floats, parts: Floats) -> None:
    row += parts[0] + parts[1]


def _bounce_off_net(ball: Floats) -> None:
    x, y, vx, vy = ball
    reach = BALL_RADIUS + NET_RADIUS
    dy = y - np.minimum(y, NET_HEIGHT)
    distance = np.sqrt(x * x + dy * dy)
    touching = distance < reach
    if not touching.any():
        return
    np.maximum(distance, _TINY, out=distance)
    nx, ny = x / distance, dy / distance
    approach = vx * nx + vy * ny
    kick = np.where(touching, np.maximum(-(1 + NET_RESTITUTION) * approach, 0.0), 0.0)
    push = np.where(touching, reach - distance, 0.0)
    x += push * nx
    y += push * ny
    vx += kick * nx
    vy += kick * ny


def _limit_speed(ball: Floats) -> None:
    speed = np.sqrt(ball[VX] * ball[VX] + ball[VY] * ball[VY])
    ball[VX:] *= BALL_MAX_SPEED / np.maximum(speed, BALL_MAX_SPEED)


def _stay_inside(ball: Floats) -> NDArray[np.int8]:
    x, y, vx, vy = ball
    wall, ceiling = HALF_WIDTH - BALL_RADIUS, CEILING - BALL_RADIUS
    np.multiply(vx, -WALL_RESTITUTION, out=vx, where=(np.abs(x) > wall) & (x * vx > 0))
    np.clip(x, -wall, wall, out=x)
    np.multiply(vy, -WALL_RESTITUTION, out=vy, where=(y > ceiling) & (vy > 0))
    landed = y <= BALL_RADIUS
    np.multiply(vy, -FLOOR_RESTITUTION, out=vy, where=landed & (vy < 0))
    np.clip(y, BALL_RADIUS, ceiling, out=y)
    return np.where(landed, np.sign(x), 0.0).astype(np.int8)


OBSERVATION_NAMES: Final = (
    *("own_x", "own_y", "own_vx", "own_vy"),
    *("ball_x", "ball_y", "ball_vx", "ball_vy"),
    *("opponent_x", "opponent_y", "opponent_vx", "opponent_vy"),
)
OBSERVATION_SIZE: Final = len(OBSERVATION_NAMES)

_PLAYER_SCALE = (HALF_WIDTH, CEILING, PLAYER_SPEED, PLAYER_JUMP)
_BALL_SCALE = (HALF_WIDTH, CEILING, BALL_MAX_SPEED, BALL_MAX_SPEED)
SCALE: Final[Floats] = np.array([*_PLAYER_SCALE, *_BALL_SCALE, *_PLAYER_SCALE], dtype=np.float32)
"""[12] metres, or metres per second, that correspond to an observation of 1."""

_FLIP = np.array([-1, 1, -1, 1], dtype=np.float32).reshape(4, 1, 1)
_BALL_TO_FRAMES = np.array([[1, -1], [1, 1], [1, -1], [1, 1]], dtype=np.float32).reshape(4, 2, 1)


def observe(courts: Courts) -> Floats:
    """Return each player's observations [2, C, 12], within about [-1, 1]; x < 0 in the player's own half."""
    features = np.empty((3, 4, 2, courts.ball.shape[1]), dtype=np.float32)
    features[0] = courts.players
    np.multiply(courts.ball[:, None], _BALL_TO_FRAMES, out=features[1])
    np.multiply(courts.players[:, ::-1], _FLIP, out=features[2])
    seen = features.reshape(OBSERVATION_SIZE, 2, -1).transpose(1, 2, 0) / SCALE
    return np.ascontiguousarray(seen)


@dataclass(frozen=True, slots=True)
class CourtView:
    """Observations [d, 12] of d players, converted back to metres and seconds; each field is [4, d]: x, y, vx, vy."""

    own: Floats
    ball: Floats
    opponent: Floats

    @classmethod
    def of(cls, observations: Floats) -> CourtView:
        """Undo the scaling of `observe`."""
        metres = (observations * SCALE).T
        return cls(metres[:4], metres[4:8], metres[8:])


_GROUND: Final = 0.25
_TEAMS: Final = (("#f27059", "#b23e34", "#ff8c75"), ("#4084d6", "#204e96", "#5ca0f2"))
"""Fill, outline and highlight of each team's player."""
_NAMES: Final = ("red, left", "blue, right")
_SHADOW, _BALL, _SEAM, _WHITE, _INK = "#ccac78", "#fff0b2", "#b08434", "#ffffff", "#2a2834"
_BACK, _STAY, _FORWARD = 0, 1, 2


def _backdrop() -> list[Shape]:
    edges = (-HALF_WIDTH, HALF_WIDTH)
    post = [(-NET_RADIUS, 0.0), (-NET_RADIUS, NET_HEIGHT), (NET_RADIUS, NET_HEIGHT), (NET_RADIUS, 0.0)]
    band = NET_HEIGHT - 0.1
    return [
        disc(1.9, 2.05, 0.26, 0.26, "#fff6d6"),
        _hills(0.62, 0.16, 1.3, 0.4, "#a8c8c4"),
        _hills(0.34, 0.12, 2.1, 2.0, "#80b09c"),
        area([(edges[0], 0.05), (edges[1], 0.05), (edges[1], -_GROUND), (edges[0], -_GROUND)], "#eed29e"),
        stroke([(edges[0], 0.05), (edges[1], 0.05)], "#d6b47c", 0.02),
        area(post, "#5c5460"),
        disc(0.0, NET_HEIGHT, NET_RADIUS, NET_RADIUS, "#5c5460"),
        *(stroke([(-NET_RADIUS, y), (NET_RADIUS, y + 0.05)], "#8c8490", 0.012) for y in np.arange(0.12, 0.78, 0.1)),
        area([(post[0][0], band), (post[0][0], band + 0.09), (post[2][0], band + 0.09), (post[2][0], band)], "#fafafa"),
    ]


def _hills(height: float, swing: float, frequency: float, phase: float, colour: str) -> Shape:
    xs = np.linspace(-HALF_WIDTH, HALF_WIDTH, 61)
    ridge = height + swing * np.sin(frequency * xs + phase) + swing / 2 * np.sin(2.3 * frequency * xs)
    return area([(-HALF_WIDTH, 0.0), *zip(xs, ridge, strict=True), (HALF_WIDTH, 0.0)], colour)


def _shadow(x: float, height: float, radius: float) -> Shape:
    size = radius * max(0.35, 1 - 0.28 * height)
    return disc(x, -0.02, size, 0.05 * size / radius, _SHADOW)


def _player(x: float, y: float, vy: float, team: int, ball: tuple[float, float]) -> list[Shape]:
    fill, line, lighter = _TEAMS[team]
    forward = 1 - 2 * team
    stretch = 0.1 * min(abs(vy) / PLAYER_JUMP, 1.0)
    rx, ry = PLAYER_RADIUS * (1 - stretch), PLAYER_RADIUS * (1 + stretch)
    smile = [(x + forward * (0.06 + 0.1 * t), y - 0.12 - 0.03 * sin(pi * t)) for t in np.linspace(0, 1, 7)]
    eyes = [_eye(x + forward * (eye + 0.02), y + 0.07, ball) for eye in (0.0, 0.17)]
    return [
        *(disc(x + foot + 0.03 * forward, y - ry + 0.03, 0.1, 0.055, line) for foot in (-0.14, 0.14)),
        disc(x, y, rx, ry, fill, line, 0.025),
        disc(x - 0.1 * forward, y + 0.16, 0.09, 0.06, lighter),
        *(shape for eye in eyes for shape in eye),
        stroke(smile, line, 0.025),
    ]


def _eye(x: float, y: float, ball: tuple[float, float]) -> list[Shape]:
    dx, dy = ball[0] - x, ball[1] - y
    reach = 0.038 / max(hypot(dx, dy), 0.1)
    return [disc(x, y, 0.078, 0.095, _WHITE), disc(x + dx * reach, y + dy * reach, 0.042, 0.048, _INK)]


def _ball(x: float, y: float) -> list[Shape]:
    """Return a ball with three curved seams, turned as if it rolled."""
    shapes = [disc(x, y, BALL_RADIUS, BALL_RADIUS, _BALL, _SEAM, 0.025)]
    for seam in range(3):
        turn = -x / BALL_RADIUS + seam * 2 * pi / 3
        points = [(t * BALL_RADIUS, turn + 0.7 * t) for t in np.linspace(0, 0.95, 6)]
        shapes.append(stroke([(x + r * cos(a), y + r * sin(a)) for r, a in points], _SEAM, 0.02))
    return shapes


ACTIONS = ActionSpec(discrete_branches=(3, 2))
"""Branch 0 is back, stay or forward (towards the net); branch 1 is stay down or jump."""

_MOVES = np.array([-1, 0, 1], dtype=np.float32)
_JUMPS = np.array([False, True])


class VolleyGroup(BuiltinGame):
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

    PARAMETERS: Mapping[str, str] = {
        "ball_gravity": f"acceleration of the falling ball, {BALL_GRAVITY:g} m/s² by default",
        "serve_speed": f"maximum horizontal speed of a serve, {SERVE_SPEED[1]:g} m/s by default",
    }

    def __init__(
        self,
        num_envs: int,
        *,
        points_to_win: int = 5,
        time_limit_s: float = 60.0,
        frame_skip: int = 6,
        behavior: str = "Volley",
    ) -> None:
        ids = f"{behavior}?team=0", f"{behavior}?team=1"
        super().__init__(num_envs, ids, ObservationSpec("court", (OBSERVATION_SIZE,)), ACTIONS)
        for name, value in (("points_to_win", points_to_win), ("frame_skip", frame_skip)):
            if value < 1:
                raise ValueError(f"VolleyGroup: {name} is {value}; it must be at least 1")
        self.match_decisions = int(time_limit_s / (TICK_S * frame_skip))
        if self.match_decisions < 1:
            raise ValueError(
                f"VolleyGroup: time_limit_s is {time_limit_s}, shorter than one "
                f"decision ({TICK_S * frame_skip} s); raise it or lower frame_skip"
            )
        self.points_to_win = points_to_win
        self.frame_skip = frame_skip
        self.courts = Courts.empty(num_envs)
        self.score = np.zeros((2, num_envs), dtype=np.int32)
        """[2, C] each team's points in the running match."""
        self._decisions = np.zeros(num_envs, dtype=np.int32)
        self._images: SceneImages | None = None
        self._ball_gravity: Floats | float = BALL_GRAVITY
        """Gravity of the ball in m/s²: one value for all running matches, or [C]."""
        self._serve_speed: Floats | None = None
        """[C] maximum serve speed in the running matches; None for the default."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Draw these parameters at the start of each match; see `BuiltinGame`."""
        super().set_parameters(parameters)
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
        """Return one court's current appearance, with the score as rows of lamps, which light up from the walls."""
        gap = min(0.22, 2.4 / self.points_to_win)
        lamps = [
            disc(
                (2 * team - 1) * (HALF_WIDTH - 0.2 - gap * lamp),
                CEILING - 0.18,
                gap * 0.36,
                gap * 0.36,
                fill if lamp < self.score[team, env_id] else _WHITE,
                line,
                0.02,
            )
            for team, (fill, line, _) in enumerate(_TEAMS)
            for lamp in range(self.points_to_win)
        ]
        return [*self.scene(env_id).shapes, *lamps]

    @property
    def display(self) -> Display:
        """The fixed parts of a court on a screen. The player on the right walks forward to the left."""
        moves = ((_BACK, _FORWARD), (_FORWARD, _BACK))
        keys = {
            behavior_id: choices(
                (_STAY, 0),
                ArrowLeft=(0, left),
                ArrowRight=(0, right),
                ArrowUp=(1, 1),
                a=(0, left),
                d=(0, right),
                w=(1, 1),
                Space=(1, 1),
            )
            for behavior_id, (left, right) in zip(self.behavior_ids, moves, strict=True)
        }
        return Display(
            TICK_S,
            (-HALF_WIDTH, -_GROUND, 2 * HALF_WIDTH, CEILING + _GROUND),
            ("#62b0e8", "#eef0e6"),
            _backdrop(),
            dict(zip(self.behavior_ids, _NAMES, strict=True)),
            keys,
            f"first to {self.points_to_win} wins",
        )

    def scene(self, env_id: int = 0) -> Scene:
        """Return one court's current appearance, as shapes."""
        ball_x, ball_y = (float(self.courts.ball[row, env_id]) for row in (X, Y))
        players = []
        for team, forward in enumerate((1, -1)):  # each x is in the player's own frame
            x, y, vy = (float(self.courts.players[row, team, env_id]) for row in (X, Y, VY))
            players.append((x * forward, y, vy))
        shapes = [_shadow(ball_x, ball_y - BALL_RADIUS, BALL_RADIUS)]
        shapes += [_shadow(x, y - PLAYER_RADIUS, PLAYER_RADIUS) for x, y, _ in players]
        for team, (x, y, vy) in enumerate(players):
            shapes += _player(x, y, vy, team, (ball_x, ball_y))
        shapes += _ball(ball_x, ball_y)
        points = {behavior_id: int(self.score[team, env_id]) for team, behavior_id in enumerate(self.behavior_ids)}
        heads = {key: (x, y + PLAYER_RADIUS) for key, (x, y, _) in zip(self.behavior_ids, players, strict=True)}
        return Scene(shapes, points, heads)

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


_CONTACT_HEIGHT: Final = 0.85
"""Height of the ball's centre, in metres, at which the player expects to hit the ball."""
_FORESIGHT: Final = 0.7
"""Fraction of the remaining flight that the player predicts."""
_BEHIND: Final = 0.17
"""Distance in metres behind the ball at which the player stands, so the ball goes forward."""
_STEADY: Final = 0.08
"""Distance from the target, in metres, within which the player stands still."""
_JUMP_REACH: Final = (0.4, 0.75, 1.3)
"""Three lengths in metres.

The player jumps at a falling ball that is within the first length sideways and between the other two in height.
"""


class ScriptedPlayer:
    """Plays any number of courts simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d players, given their observations [d, 12]."""
        seen = CourtView.of(observations[0])
        way = _target(seen) - seen.own[X]
        move = np.where(way > _STEADY, _FORWARD, np.where(way < -_STEADY, _BACK, _STAY))
        discrete = np.stack([move, _jumps(seen)], axis=1).astype(np.int32)
        return ActionBatch(np.zeros((len(discrete), 0), dtype=np.float32), discrete)

    __call__ = act


def _target(seen: CourtView) -> Floats:
    """Return [d] where to stand: behind the expected landing point, or at home if the ball is in the other half."""
    ball = seen.ball
    above = np.maximum(ball[Y] - _CONTACT_HEIGHT, 0.0)
    seconds = (ball[VY] + np.sqrt(ball[VY] ** 2 + 2 * BALL_GRAVITY * above)) / BALL_GRAVITY
    landing = ball[X] + _FORESIGHT * ball[VX] * np.maximum(seconds, 0.0)
    wall = BALL_RADIUS - HALF_WIDTH
    landing = np.where(landing < wall, 2 * wall - landing, landing)
    ours = (ball[X] < 0) & (landing < 0)
    spot = np.clip(landing - _BEHIND, PLAYER_RADIUS - HALF_WIDTH, 0.0)
    return np.where(ours, spot, -HOME).astype(np.float32)


def _jumps(seen: CourtView) -> NDArray[np.bool_]:
    ball, (sideways, low, high) = seen.ball, _JUMP_REACH
    near = np.abs(ball[X] - seen.own[X]) < sideways
    return np.asarray(near & (ball[VY] < 0) & (ball[Y] > low) & (ball[Y] < high))
