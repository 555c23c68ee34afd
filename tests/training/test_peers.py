"""Watching other processes, with a fake coordination service."""

import threading

import jax
import pytest

from xlme_jax.training import peers


class Client:
    """Returns the live processes: `answers` in turn; errors are raised."""

    def __init__(self, answers):
        self.answers, self.asked = list(answers), []
        self.silence = threading.Event()

    def get_live_nodes(self, processes):
        self.asked.append(processes)
        if not self.answers:
            self.silence.wait(30)
            return {}
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def watched(monkeypatch):
    """Watches with this client until the process would end; returns its message."""
    monkeypatch.setattr(peers, "_ASK_SECONDS", 0.01)
    monkeypatch.setattr(jax, "process_count", lambda: 3)

    def watch(answers, timeout=30):
        client, said, left = Client(answers), [], threading.Event()
        monkeypatch.setattr(peers, "coordination_client", lambda: client)
        codes = []

        def leave(status):
            codes.append(status)
            left.set()

        monkeypatch.setattr(peers, "leave", leave)
        with peers.Watch(timeout, said.append):
            assert left.wait(30)
        client.silence.set()
        assert set(codes) == {peers.EXIT_LOST_PEERS}
        return said[0], client

    return watch


def test_the_processes_that_are_gone_are_named(watched):
    everybody = {0: 1, 1: 1, 2: 1}
    said, client = watched([everybody, everybody, {0: 1}])
    assert said.startswith("Process 0 of 3: lost processes 1, 2. See the logs of the others")
    assert "same command" in said
    assert client.asked[0] == [0, 1, 2]


def test_a_process_that_does_not_ask_is_missed_in_time(watched):
    said, _ = watched([{0: 1, 1: 1, 2: 1}], timeout=0.05)
    assert "no response from another process" in said


def test_lost_coordinator_is_reported(watched):
    said, _ = watched([jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed\nmore")])
    assert "lost the coordinator, process 0 (UNAVAILABLE: Socket closed)" in said


def test_a_single_process_watches_nobody():
    before = threading.active_count()
    with peers.Watch(1, print):
        assert threading.active_count() == before
    assert peers.coordination_client() is None
