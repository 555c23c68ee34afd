"""Watching other processes, with a fake coordination service, and checking their devices."""

import os
import threading
import types

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


def have_gpus(monkeypatch, count, variables):
    """Lets JAX have GPUs, and sets what launchers say."""
    gpu = types.SimpleNamespace(platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu] * count)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(peers, "cpus_chosen", lambda: False)
    monkeypatch.setattr(os, "environ", variables)


def test_granted_gpus_that_jax_does_not_have_end_the_run(monkeypatch):
    have_gpus(monkeypatch, 1, {"SLURM_GPUS_ON_NODE": "8", "SLURMD_NODENAME": "a"})
    with pytest.raises(
        ValueError, match=r"^a: 1 process uses 1 of 8 GPUs \(SLURM_GPUS_ON_NODE=8\)"
    ):
        peers.check_devices(print)
    said = []
    monkeypatch.setattr(peers, "cpus_chosen", lambda: True)
    peers.check_devices(said.append)
    assert said == [
        "a: 1 process uses 1 of 8 GPUs (SLURM_GPUS_ON_NODE=8), because of JAX_PLATFORMS=cpu."
    ]


def test_a_task_that_is_bound_to_one_core_is_told(monkeypatch):
    said = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5})
    have_gpus(monkeypatch, 8, {"SLURM_GPUS_ON_NODE": "8"})
    peers.check_devices(said.append)
    assert [line.startswith("8 GPUs of this process are fed by 1 CPUs") for line in said] == [True]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    peers.check_devices(said.append)
    assert len(said) == 1


def test_hosts_that_have_not_joined_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)  # As libtpu has it on a slice of 4 hosts.
    with pytest.raises(ValueError, match=r"devices of 4 hosts.*add --distributed on all hosts"):
        peers.check_devices(print)
