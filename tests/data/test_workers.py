import functools
import os

import pytest

from xlme_jax.data import workers


def double(item, report):
    report(item)
    return item * 2


def end(item, report):
    os._exit(1)


def fail(item, report):
    raise ValueError(f"cannot do {item}")


def nothing():
    pass


@pytest.mark.parametrize("count", [1, 2])
def test_every_item_gets_its_result(count, capfd):
    assert dict(workers.run(double, [5, 1, 7], count, nothing)) == {5: 10, 1: 2, 7: 14}
    assert "3/3" in capfd.readouterr().err


@pytest.mark.parametrize("count", [1, 2])
def test_errors_arrive_as_they_were_raised(count):
    with pytest.raises(ValueError, match="cannot do 1"):
        list(workers.run(fail, [1, 1], count, nothing))


def test_a_killed_worker_is_said():
    with pytest.raises(workers.WorkerDied, match="--workers"):
        list(workers.run(functools.partial(end), [1, 2], 2, nothing))
