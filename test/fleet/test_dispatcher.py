"""What is tried again, where, and how often: workers that do what a test says."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from da3_ros.fleet import dispatcher as module
from da3_ros.fleet.dispatcher import Dispatcher
from da3_ros.fleet.jobs import FleetError, Job
from da3_ros.fleet.pool import Died, Finished, NotOpened, Opened, Pool
from da3_ros.fleet.worker import COMPLETE, FAILED, Outcome, WorkerInfo

INFO = WorkerInfo("here", "cpu", 1, 1.0, 0.1)


class Scripted(Pool):
    """Workers at hand: every call is answered at the next ``wait``."""

    def __init__(self, room, answers=None, refusals=()):
        """answers: by name of a recording, what its attempts give: complete, failed, hurt, died.
        refusals: numbers of workers that cannot be opened."""
        self.room, self.refusals = room, set(refusals)
        self.answers = defaultdict(list, answers or {})
        self.events, self.stopped, self.ran, self.count = [], [], [], 0
        self.alive, self.most = set(), 0

    def capacity(self):
        return self.room

    def start(self):
        number, self.count = self.count, self.count + 1
        self.alive.add(number)
        self.most = max(self.most, len(self.alive))
        refused = number in self.refusals
        if refused:
            self.alive.discard(number)
        self.events.append(NotOpened(number, "no card") if refused else Opened(number, INFO))
        return number

    def stop(self, worker):
        self.stopped.append(worker)
        self.alive.remove(worker)

    def run(self, worker, job, attempt):
        assert worker in self.alive
        self.ran.append((job.name, worker, attempt))
        answer = self.answers[job.name].pop(0) if self.answers[job.name] else "complete"
        if answer == "died":
            self.alive.remove(worker)
            self.events.append(Died(worker, "killed"))
            return
        state = COMPLETE if answer == "complete" else FAILED
        outcome = Outcome(
            job.name, job.key, state, "" if state == COMPLETE else answer, worker=worker,
            attempts=attempt, worker_unhurt=answer != "hurt",
        )  # fmt: skip
        self.events.append(Finished(worker, outcome))

    def wait(self, timeout_s):
        events, self.events = self.events, []
        return events

    def progress(self):
        return {}


def job(name):
    return Job(name, Path(name), Path("out") / name, 1, "key")


def outcomes(pool, names, **options):
    found = {}
    dispatcher = Dispatcher(
        pool, [job(name) for name in names],
        on_outcome=lambda one: found.setdefault(one.name, []).append(one), **options,
    )  # fmt: skip
    dispatcher.run()
    assert all(len(given) == 1 for given in found.values())
    assert sorted(found) == sorted(names)
    return {name: given[0] for name, given in found.items()}, dispatcher


def test_each_recording_is_processed_once():
    pool = Scripted(3)
    found, dispatcher = outcomes(pool, "abcdefg")
    assert {one.state for one in found.values()} == {COMPLETE}
    assert Counter(name for name, _, _ in pool.ran) == Counter("abcdefg")
    assert pool.most == 3
    assert sum(w.recordings for w in dispatcher.workers.values()) == 7


@pytest.mark.parametrize(("room", "most", "count"), [(8, None, 2), (8, 1, 1), (1, None, 1)])
def test_no_more_workers_than_recordings_room_or_asked_for(room, most, count):
    pool = Scripted(room)
    outcomes(pool, "ab", most_workers=most)
    assert pool.most == count


def test_a_failed_recording_is_tried_once_more_on_another_worker():
    pool = Scripted(2, {"b": ["failed"]})
    found, _ = outcomes(pool, "abc")
    assert found["b"].state == COMPLETE
    assert found["b"].attempts == 2
    first, second = (worker for name, worker, _ in pool.ran if name == "b")
    assert first != second


def test_the_only_worker_is_replaced_for_the_second_attempt():
    pool = Scripted(1, {"b": ["failed"]})
    found, dispatcher = outcomes(pool, "abc")
    assert found["b"].state == COMPLETE
    first, second = (worker for name, worker, _ in pool.ran if name == "b")
    assert first != second
    assert pool.stopped == [first]
    assert "replaced" in dispatcher.workers[first].end
    assert pool.most == 1


def test_the_second_failure_is_final_and_the_others_go_on():
    pool = Scripted(2, {"b": ["failed", "failed", "complete"]})
    found, _ = outcomes(pool, "abcd")
    assert (found["b"].state, found["b"].reason, found["b"].attempts) == (FAILED, "failed", 2)
    assert {found[name].state for name in "acd"} == {COMPLETE}


def test_a_worker_with_an_unexpected_failure_is_replaced():
    pool = Scripted(1, {"a": ["hurt"]})
    found, dispatcher = outcomes(pool, "ab")
    assert {one.state for one in found.values()} == {COMPLETE}
    assert pool.stopped[0] == 0
    assert [worker for _, worker, _ in pool.ran][1:] == [1, 1]
    assert "replaced after hurt" in dispatcher.workers[0].end


def test_a_dead_worker_costs_no_attempt_and_its_recording_goes_on_first():
    pool = Scripted(1, {"a": ["died", "failed", "complete"]})
    found, dispatcher = outcomes(pool, "ab")
    assert found["a"].state == COMPLETE
    assert [name for name, _, _ in pool.ran][:2] == ["a", "a"]
    assert found["a"].attempts == 3
    assert dispatcher.workers[0].end == "killed"


def test_a_recording_that_kills_workers_is_given_up():
    pool = Scripted(2, {"b": ["died"] * 9})
    found, _ = outcomes(pool, "abc")
    assert found["b"].state == FAILED
    assert "3 workers died while they processed it: killed" in found["b"].reason
    assert {found[name].state for name in "ac"} == {COMPLETE}


def test_a_machine_that_refuses_leaves_work_to_the_others():
    pool = Scripted(2, refusals=[0])
    found, _ = outcomes(pool, "abcd")
    assert {one.state for one in found.values()} == {COMPLETE}


def test_without_any_worker_the_reason_is_an_error():
    pool = Scripted(2, refusals=range(100))
    with pytest.raises(FleetError, match="no worker could be started: no card"):
        outcomes(pool, "abcd")
    assert pool.count <= 3


def test_workers_that_were_lost_and_cannot_be_replaced_are_an_error():
    pool = Scripted(1, {"a": ["died"]}, refusals=range(1, 100))
    with pytest.raises(FleetError, match="no card"):
        outcomes(pool, "ab")
    assert pool.count == 1 + module.MOST_REFUSALS


def test_no_room_left_is_an_error():
    pool = Scripted(1, {"a": ["died"]})
    run, pool.run = pool.run, lambda *given: (setattr(pool, "room", 0), run(*given))
    with pytest.raises(FleetError, match="no machine"):
        outcomes(pool, "a")


def test_machines_that_join_get_work(monkeypatch):
    monkeypatch.setattr(module, "CAPACITY_S", 0.0)
    pool = Scripted(1)
    run, pool.run = pool.run, lambda *given: (setattr(pool, "room", 4), run(*given))
    outcomes(pool, "abcdef")
    assert pool.most == 4


def test_a_spare_worker_is_an_idle_or_a_new_one():
    pool = Scripted(1)
    _, dispatcher = outcomes(pool, "a")
    assert dispatcher.spare_worker() == 0
    dispatcher.idle.discard(0)
    assert dispatcher.spare_worker() == 1


def test_refusals_long_ago_do_not_count_when_the_last_worker_is_lost():
    """Three in a row end a fleet; a worker that opens between them begins the count anew."""
    pool = Scripted(1, {"a": ["died"], "b": ["died"]}, refusals=[1, 2, 4, 5])
    found, _ = outcomes(pool, "ab")
    assert {one.state for one in found.values()} == {COMPLETE}


def test_a_worker_knows_how_long_it_was_busy(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    _, dispatcher = outcomes(Scripted(1), "ab")
    assert dispatcher.workers[0].busy_s > 0


def test_refusals_do_not_end_a_fleet_that_is_at_work():
    """Four of eight places are on a machine that refuses; then a good worker dies."""
    names = [f"r{i}" for i in range(20)]
    pool = Scripted(8, {"r9": ["died"]}, refusals=[4, 5, 6, 7, 8, 9])
    found, _ = outcomes(pool, names)
    assert {one.state for one in found.values()} == {COMPLETE}


def test_the_first_refusal_waits_for_the_second_worker():
    pool = Scripted(2, refusals=[0])
    wait, late, seen = pool.wait, [], []

    def wait_for_the_second_later(timeout_s):
        events = wait(timeout_s)
        if events and not seen:
            seen.append(True)
            late.extend(e for e in events if isinstance(e, Opened))
            return [e for e in events if not isinstance(e, Opened)]
        return [*(late.pop() for _ in late[:1]), *events]

    pool.wait = wait_for_the_second_later
    found, _ = outcomes(pool, "abcd", most_workers=2)
    assert {one.state for one in found.values()} == {COMPLETE}


def test_a_machine_that_joins_after_refusals_is_used(monkeypatch):
    monkeypatch.setattr(module, "CAPACITY_S", 0.0)
    pool = Scripted(4, refusals=[1, 2, 3])
    run, pool.run = pool.run, lambda *given: (setattr(pool, "room", 8), run(*given))
    outcomes(pool, [f"r{i}" for i in range(20)])
    assert pool.most > 1
