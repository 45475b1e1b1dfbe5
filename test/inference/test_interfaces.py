"""What a session does that has nothing but an answer."""

import pytest

from da3_ros.inference import InferenceSession, Session
from da3_ros.inference.interfaces import SessionStatus


class Answers(Session):
    def infer(self, window):
        return None


def test_an_answer_is_enough_for_a_session():
    session = Answers()
    assert session.plan is session.fit((640, 480), 8, 1) is session.warm_up(8, 1) is None
    session.check_budget(0.0)
    session.set_budget(1.0)
    with session.undone_if_refused():
        session.prefetch(None)
    assert session.status().degraded == SessionStatus().degraded == ()
    assert session.motion_error is session.on_window_running is None


def test_a_plan_needs_a_network():
    with pytest.raises(ValueError, match="needs a network"):
        Answers().use_plan(None)


def test_a_session_without_an_answer_is_none():
    with pytest.raises(TypeError):
        Session()


def test_the_network_session_has_every_answer_of_its_own():
    names = [n for n in vars(Session) if not n.startswith("_") and callable(getattr(Session, n))]
    assert set(names) <= set(vars(InferenceSession))
