"""Ways of a camera in a scene of any unit, and of the robot that carries it, in metres."""

import numpy as np

DEPTH = 3.0  # metres


def at(x, y=0.0):
    T = np.eye(4)
    T[:3, 3] = x, y, 0.0
    return T


def drive(metres_per_unit, steps=200, step_m=0.05, noise_m=0.0, seed=0):
    """(scene pose, odometry pose) along a bend; noise grows with the root of the way."""
    rng = np.random.default_rng(seed)
    true, theirs = np.zeros(2), np.zeros(2)
    for i in range(steps):
        move = step_m * np.array([np.cos(i / 60), np.sin(i / 60)])
        true = true + move
        theirs = theirs + move + noise_m * np.sqrt(step_m) * rng.standard_normal(2)
        yield at(*(true / metres_per_unit)), at(*theirs)
