"""Timed windows are the node's: those with more new views do not count."""

import itertools

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.benchmark import measure_speed


def test_only_windows_with_the_usual_new_views_are_timed(monkeypatch):
    config = InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=28)
    session = InferenceSession(config, poses=False)
    session.memory.fit((4, 3), 4, 1)
    infer, new_views, clock = session.infer, [], itertools.count()

    def counted(window):
        new_views.append(sum(session.feature_cache.get(v.image) is None for v in window.views))
        done = infer(window)
        return type(done)(**vars(done) | {"inference_s": float(next(clock))})

    monkeypatch.setattr(session, "infer", counted)
    shown = []
    speed = measure_speed(session, 5, warm_up=3, unseen=2, on_window=lambda: shown.append(0))
    assert [new_views[int(s)] for s in speed.window_s] == [1] * 5
    assert [new_views[int(s)] for s in speed.unseen_s] == [4] * 2
    assert new_views[int(speed.first_s)] == 4
    assert len(shown) == len(new_views) - 1, "a window that does not count is not shown"
