"""What a session does that has nothing but an answer."""

import pytest

from da3_ros.inference import InferenceSession, Session
from da3_ros.inference.interfaces import Memory, SessionStatus
from da3_ros.inference.memory_governor import MemoryGovernor


class Answers(Session):
    def infer(self, window):
        return None


def test_an_answer_is_enough_for_a_session():
    session = Answers()
    assert (
        session.memory.plan
        is session.memory.fit((640, 480), 8, 1)
        is session.warm_up(8, 1)
        is None
    )
    session.memory.check_budget(0.0)
    session.memory.set_budget(1.0)
    with session.memory.undone_if_refused():
        session.prefetch(None)
    assert session.status().degraded == SessionStatus().degraded == ()
    assert session.motion_error is session.on_window_running is None


def test_a_plan_needs_a_network():
    with pytest.raises(ValueError, match="needs a network"):
        Answers().memory.use_plan(None)


def test_a_session_without_an_answer_is_none():
    with pytest.raises(TypeError):
        Session()


@pytest.mark.parametrize(("plain", "own"), [(Session, InferenceSession), (Memory, MemoryGovernor)])
def test_the_network_session_has_every_answer_of_its_own(plain, own):
    names = [n for n in vars(plain) if not n.startswith("_") and callable(getattr(plain, n))]
    assert set(names) <= set(vars(own))
