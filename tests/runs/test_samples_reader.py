"""The reader of samples."""

import pytest

from xlme_jax.objectives.base import PlainObjective
from xlme_jax.runs import assembly, sample_reader
from xlme_jax.runs.parts import Parts
from xlme_jax.training.loop_config import LoopConfig


@pytest.mark.parametrize("every", [None, 0])
def test_without_samples_there_is_no_reader(every):
    settings = LoopConfig(train_steps=1, samples_every=every)
    assert assembly._samples_reader(Parts(None, None, None, (), settings), None, None) is None


def test_a_system_that_shows_nothing_is_named():
    settings = LoopConfig(train_steps=1, samples_every=5)
    with pytest.raises(ValueError, match=r"samples_every = 5: PlainObjective does not show .*None"):
        sample_reader.reader(
            Parts(None, object.__new__(PlainObjective), None, (), settings), None, None
        )


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match=r"Loop.samples_every = -1"):
        LoopConfig(train_steps=1, samples_every=-1)
