"""Smooth camera walks through a room that stay clear of walls and boxes.

Candidates start at random positions; one without collisions that sees more than a bare wall is
used. The room: metres, z up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from da3_ros.synthetic.rooms import Room, clearance, view_distance
from da3_ros.types import Array

WALKS = ("loop", "straight", "spot", "handheld", "still", "strafe", "carried", "drone")
CLEARANCE_M = 0.3  # least distance of the camera from any surface
_CANDIDATES = 96
_SHAKE_M, _SHAKE_RAD = 0.012, 0.015  # amplitudes of a steady hand
_STEP_HZ = 1.9  # steps of a person who walks
_GRAVITY = 9.81  # m/s^2


@dataclass(frozen=True)
class Pace:
    """Speed limits of a camera; they hold between any two consecutive frames."""

    rate_hz: float = 10.0
    max_speed_m_s: float = 0.8
    max_turn_deg_s: float = 40.0

    @property
    def step_m(self) -> float:
        """Largest translation per frame."""
        return self.max_speed_m_s / self.rate_hz

    @property
    def turn_rad(self) -> float:
        """Largest rotation per frame."""
        return float(np.radians(self.max_turn_deg_s)) / self.rate_hz


@dataclass(frozen=True, eq=False)
class _Path:
    """Motion of C candidates: position [C, N, 3]; yaw, pitch and roll [C, N] in radians."""

    position: Array
    yaw: Array
    pitch: Array
    roll: Array

    def __getitem__(self, candidate: int) -> _Path:
        one = slice(candidate, candidate + 1)
        return _Path(self.position[one], self.yaw[one], self.pitch[one], self.roll[one])


def make_walk(
    room: Room, kind: str, frames: int, seed: int = 0, pace: Pace | None = None
) -> Array:
    """Poses T_room_camera float64 [N, 4, 4] of a walk (OpenCV optical axes, z up, metres).

    Args:
        kind: ``straight`` looks roughly ahead; ``strafe`` sideways; ``spot`` turns in place;
            ``loop`` ends at its first pose, with a full rotation if there are enough frames;
            ``handheld`` is a slow curve with shake; ``still`` is one pose; ``carried`` is a
            walking person who sweeps the camera around; ``drone`` accelerates and brakes in all
            directions and tilts as it does.
        frames: number of poses.
        seed: random seed of start and motion.
        pace: speed limits. With few frames walks are short, never fast.

    Raises:
        ValueError: an unknown kind, no frames, or a room without free space.
    """
    if kind not in WALKS:
        raise ValueError(f"unknown walk '{kind}': must be one of {', '.join(WALKS)}")
    if frames < 1:
        raise ValueError(f"frames is {frames}: a walk needs at least one")
    pace = pace or Pace()
    rng = np.random.default_rng([seed, room.seed, WALKS.index(kind)])
    for shrink in (1.0, 0.7, 0.5, 0.3, 0.15, 0.05, 0.0):
        start = _Start.draw(room, rng)
        path = _MOTIONS[kind](start, _WalkTime(frames, pace), rng, shrink)
        best = _choose(room, path, rng)
        if best is not None:
            return _poses(path[best])[0]
    raise ValueError(f"room {room.seed} has no free space for a camera")


# Motions: each returns candidates, of which _choose selects one ---------------------------------


@dataclass(frozen=True, eq=False)
class _Start:
    """Start of the candidates: position [C, 3], yaw [C], pitch [C]."""

    position: Array
    yaw: Array
    pitch: Array

    @staticmethod
    def draw(room: Room, rng: np.random.Generator) -> _Start:
        size = room.size
        position = rng.uniform(CLEARANCE_M, size - CLEARANCE_M, (_CANDIDATES, 3))
        position[:, 2] = rng.uniform(1.0, min(1.8, size[2] - 0.5))
        yaw = rng.uniform(-np.pi, np.pi, _CANDIDATES)
        return _Start(position, yaw, rng.uniform(-0.35, 0.08, _CANDIDATES))


@dataclass(frozen=True)
class _WalkTime:
    """Number of frames and pace, and the reach of a motion within them."""

    frames: int
    pace: Pace

    def ease(self) -> Array:
        """Progress [N] from 0 to 1: starts and ends at rest, fastest (1.5 times) in the middle."""
        t = np.linspace(0.0, 1.0, self.frames)
        return t * t * (3.0 - 2.0 * t)

    def reach_m(self, share: float = 0.9) -> float:
        """Largest path length of ``ease`` with ``share`` of the speed; the rest is for shake."""
        return share * self.pace.step_m * max(self.frames - 1, 0) / 1.5

    def reach_rad(self, share: float = 0.9) -> float:
        """The same for rotation."""
        return share * self.pace.turn_rad * max(self.frames - 1, 0) / 1.5


_Motion = Callable[[_Start, _WalkTime, np.random.Generator, float], _Path]


def _directions(yaw: Array) -> Array:
    """Horizontal unit vectors [..., 3] for a yaw."""
    return np.stack([np.cos(yaw), np.sin(yaw), np.zeros_like(yaw)], -1)


def _level(start: _Start, position: Array, yaw: Array) -> _Path:
    pitch = np.broadcast_to(start.pitch[:, None], yaw.shape)
    return _Path(position, yaw, pitch, np.zeros(yaw.shape))


def _line(
    start: _Start, time: _WalkTime, heading: Array, length: float, turn: float
) -> tuple[Array, Array]:
    """Positions [C, N, 3] on a straight line; yaw [C, N] swings by ``turn`` and back."""
    along = time.ease() * length
    position = start.position[:, None] + _directions(heading)[:, None] * along[None, :, None]
    swing = turn * np.sin(np.pi * time.ease()) / np.pi
    return position, start.yaw[:, None] + swing


def _straight(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    length = shrink * min(time.reach_m(), rng.uniform(1.5, 5.0))
    turn = min(time.reach_rad(0.5), 0.3) * rng.uniform(-1, 1)
    heading = start.yaw + rng.uniform(-0.35, 0.35)
    return _level(start, *_line(start, time, heading, length, turn))


def _strafe(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    length = shrink * min(time.reach_m(), rng.uniform(0.8, 3.0))
    heading = start.yaw + rng.choice([-0.5, 0.5]) * np.pi + rng.uniform(-0.3, 0.3)
    return _level(start, *_line(start, time, heading, length, 0.0))


def _still(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    return _level(start, *_line(start, time, start.yaw, 0.0, 0.0))


def _spot(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    sweep = min(time.reach_rad(), rng.uniform(np.pi / 3, 2 * np.pi)) * rng.choice([-1.0, 1.0])
    position, yaw = _line(start, time, start.yaw, 0.0, 0.0)
    return _level(start, position, yaw + sweep * time.ease())


def _loop(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    """An irregular ellipse; the camera rotates fully if the pace allows, else it swings."""
    phase = 2.0 * np.pi * time.ease()
    around = rng.uniform(0.6, 1.6) if shrink == 1.0 else 1.6 * shrink  # radius in metres
    radius = min(around, time.reach_m(0.75) / (2.0 * np.pi))
    wide, high, shift = rng.uniform(0.75, 1.25), 0.08 * rng.uniform(-1, 1), rng.uniform(0, 6.28)
    sense = rng.choice([-1.0, 1.0])
    x = radius * wide * (np.cos(phase) - 1.0)
    y = sense * radius * (np.sin(phase) + 0.1 * np.sin(2.0 * phase))
    z = min(high, 0.1 * radius) * (np.cos(phase + shift) - np.cos(shift))
    forward, left = _directions(start.yaw), _directions(start.yaw + np.pi / 2)
    up = np.array([0.0, 0.0, 1.0])
    position = start.position[:, None] + x[:, None] * forward[:, None] + y[:, None] * left[:, None]
    position = position + z[:, None] * up
    if time.reach_rad() >= 2.0 * np.pi:
        turn = sense * phase
    else:
        turn = min(0.35, time.reach_rad(0.8) / 6.3) * np.sin(phase)
    return _level(start, position, start.yaw[:, None] + turn)


def _handheld(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    length = shrink * min(time.reach_m(0.45), rng.uniform(0.5, 2.5))
    turn = min(time.reach_rad(0.35), 0.8) * rng.uniform(-1, 1)
    heading = start.yaw + rng.uniform(-np.pi, np.pi)
    position, yaw = _line(start, time, heading, length, turn)
    path = _level(start, position, yaw)
    shift = [_shake(time, rng, 0.4 * time.pace.step_m, _SHAKE_M) for _ in range(3)]
    tilt = [_shake(time, rng, 0.3 * time.pace.turn_rad, _SHAKE_RAD) for _ in range(3)]
    return _Path(
        path.position + np.stack(shift, -1),
        path.yaw + tilt[0],
        path.pitch + tilt[1],
        path.roll + tilt[2],
    )


def _shake(time: _WalkTime, rng: np.random.Generator, step: float, amplitude: float) -> Array:
    """Hand tremor [N] of 0.4 to 2.5 Hz that changes by less than ``step`` / sqrt(3) per frame."""
    t = np.arange(time.frames) / time.pace.rate_hz
    hertz, phase = rng.uniform(0.4, 2.5, 4), rng.uniform(0.0, 2.0 * np.pi, 4)
    weight = rng.dirichlet(np.ones(4))
    wave = (weight * np.sin(2.0 * np.pi * hertz * t[:, None] + phase)).sum(-1)
    steepest = 2.0 * np.pi * float((weight * hertz).sum()) / time.pace.rate_hz
    return min(amplitude, step / np.sqrt(3.0) / steepest) * wave


def _carried(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    length = shrink * min(time.reach_m(0.3), rng.uniform(0.5, 2.5))
    turn = min(time.reach_rad(0.3), 2.5) * rng.choice([-1.0, 1.0])
    heading = start.yaw + rng.uniform(-np.pi, np.pi)
    position, yaw = _line(start, time, heading, length, 0.0)
    path = _level(start, position, yaw + turn * time.ease())
    arm = _waves(time, rng, 0.35 * time.pace.step_m, (0.4, 0.9))
    feet = _waves(time, rng, 0.25 * time.pace.step_m, (_STEP_HZ, _STEP_HZ), 0.02)
    look = _waves(time, rng, 0.4 * time.pace.turn_rad, (0.3, 0.8), 0.15)
    return _Path(
        path.position + shrink * (arm + feet),
        path.yaw + look[:, 0],
        path.pitch + look[:, 1],
        path.roll + look[:, 2],
    )


def _drone(start: _Start, time: _WalkTime, rng: np.random.Generator, shrink: float) -> _Path:
    turn = min(time.reach_rad(0.3), 2.5) * rng.choice([-1.0, 1.0])
    yaw = start.yaw[:, None] + turn * time.ease()
    fast = _waves(time, rng, 0.45 * time.pace.step_m, (0.25, 0.7))
    slow = _waves(time, rng, 0.45 * time.pace.step_m, (0.12, 0.25))
    away = shrink * (fast + slow - fast[0] - slow[0])
    path = _level(start, start.position[:, None] + away, yaw)
    # Thrust is along the drone's own vertical, so that it tilts by acceleration over gravity.
    push = shrink * _accelerations(fast + slow, time)
    tilt = [np.einsum("ni,cni->cn", push, _directions(yaw + side)) for side in (0.0, np.pi / 2)]
    steepest = np.abs(np.diff(tilt, axis=-1)).max(initial=0.0) / _GRAVITY
    tilted = min(1.0, 0.3 * time.pace.turn_rad / max(steepest, 1e-9)) / _GRAVITY
    return _Path(path.position, yaw, path.pitch - tilted * tilt[0], path.roll - tilted * tilt[1])


def _waves(
    time: _WalkTime, rng: np.random.Generator, step: float, hertz: tuple[float, float],
    most: float = np.inf,
) -> Array:  # fmt: skip
    """Three sine waves [N, 3] of frequencies in ``hertz`` that together change by less than
    ``step`` per frame, with amplitudes up to ``most``."""
    t = np.arange(time.frames) / time.pace.rate_hz
    frequency = np.minimum(rng.uniform(*hertz, 3), time.pace.rate_hz / 5)
    phase = rng.uniform(0.0, 2.0 * np.pi, 3)
    steepest = 2.0 * np.pi * frequency / time.pace.rate_hz
    amplitude = np.minimum(step / np.sqrt(3.0) / steepest, most)
    return np.asarray(amplitude * np.sin(2.0 * np.pi * frequency * t[:, None] + phase))


def _accelerations(position: Array, time: _WalkTime) -> Array:
    """Second derivative [N, 3] of positions [N, 3], m/s^2; zero for fewer than three."""
    if len(position) < 3:
        return np.zeros_like(position)
    step = 1 / time.pace.rate_hz
    return np.asarray(np.gradient(np.gradient(position, step, axis=0), step, axis=0))


_MOTIONS: dict[str, _Motion] = {
    "loop": _loop,
    "straight": _straight,
    "spot": _spot,
    "handheld": _handheld,
    "still": _still,
    "strafe": _strafe,
    "carried": _carried,
    "drone": _drone,
}


# Choice and poses -------------------------------------------------------------------------------


def _choose(room: Room, path: _Path, rng: np.random.Generator) -> int | None:
    """A random candidate without collision that looks into the room; None: all collide."""
    every = max(1, path.position.shape[1] // 60)
    free = clearance(room, path.position[:, ::every]).min(-1)
    free = np.minimum(free, clearance(room, path.position[:, -1]))
    candidates = np.flatnonzero(free >= CLEARANCE_M)
    if not candidates.size:
        return None
    view = _view(room, path, candidates)
    good = candidates[view >= 1.5]
    if good.size:
        return int(rng.choice(good))
    return int(candidates[view.argmax()])


def _view(room: Room, path: _Path, candidates: Array) -> Array:
    """Mean view distance [C] over a fan of rays, the smallest of five moments of the walk."""
    moments = np.linspace(0, path.yaw.shape[1] - 1, 5).astype(int)
    yaw = path.yaw[candidates][:, moments]
    fan = np.linspace(-0.5, 0.5, 5)
    rays = _directions(yaw[..., None] + fan) + np.array([0.0, 0.0, -0.15])
    origin = path.position[candidates][:, moments, None]
    return np.asarray(view_distance(room, origin, rays).mean(-1).min(-1))


def _poses(path: _Path) -> Array:
    """T_room_camera [C, N, 4, 4]: yaw and pitch aim the optical axis, roll turns about it."""
    level = np.cos(path.pitch)
    z = np.stack([np.cos(path.yaw) * level, np.sin(path.yaw) * level, np.sin(path.pitch)], -1)
    x = np.stack([np.sin(path.yaw), -np.cos(path.yaw), np.zeros_like(path.yaw)], -1)
    y = np.cross(z, x)
    c, s = np.cos(path.roll)[..., None], np.sin(path.roll)[..., None]
    T = np.zeros((*path.yaw.shape, 4, 4))
    T[..., :3, :3] = np.stack([c * x + s * y, c * y - s * x, z], -1)
    T[..., :3, 3] = path.position
    T[..., 3, 3] = 1.0
    return T


def ring_walk(room: Room, frames: int, laps: float, width: float = 2.2) -> Array:
    """Poses [F, 4, 4] of a walk along the middle of a ``make_ring`` corridor, looking ahead.

    With more than one lap it returns to its start. Corners are quarter circles; the camera sways
    slightly, as if carried by hand.
    """
    size, middle = room.size, width / 2
    straight = size[:2] - 2 * width  # from the end of one corner to the start of the next
    corner = np.pi / 2 * middle
    lengths = np.array([straight[0], corner, straight[1], corner] * 2)
    way = np.linspace(0, laps * lengths.sum(), frames) % lengths.sum()
    leg = np.searchsorted(np.cumsum(lengths), way, side="right") % 8
    done = way - np.concatenate(([0.0], np.cumsum(lengths)))[leg]
    heading = np.pi / 2 * (leg // 2) + np.where(leg % 2, done / middle, 0.0)
    w, m, (x, y) = width, middle, size[:2]
    starts = np.array(
        [
            [w, m],
            [x - w, m],
            [x - m, w],
            [x - m, y - w],
            [x - w, y - m],
            [w, y - m],
            [m, y - w],
            [m, w],
        ]
    )
    # Legs with odd numbers are corners, to the left.
    angle = np.where(leg % 2, done / middle, 0.0)
    local = np.stack((middle * np.sin(angle), middle * (1 - np.cos(angle))), axis=1)
    local[leg % 2 == 0, 0] = done[leg % 2 == 0]
    c, s = np.cos(heading - angle), np.sin(heading - angle)
    ahead, left = np.stack((c, s), axis=1), np.stack((-s, c), axis=1)
    position = starts[leg] + local[:, :1] * ahead + local[:, 1:] * left
    time = np.arange(frames)
    yaw = heading + np.radians(3) * np.sin(0.23 * time)
    height = 1.4 + 0.03 * np.sin(0.7 * time)
    level = np.zeros(frames)
    return _poses(_Path(np.column_stack((position, height)), yaw, level - 0.05, level))
