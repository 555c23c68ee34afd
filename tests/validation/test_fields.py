import dataclasses
from typing import Literal

import pytest

from xlme_jax.validation.fields import check_at_least, check_choices

Size = Literal["small", "large"]


@dataclasses.dataclass
class Config:
    size: Size = "small"
    color: Literal["red"] | None = None
    count: int | None = 1


@pytest.mark.parametrize("config", [Config(), Config("large", "red"), Config(color=None)])
def test_listed_choices_pass(config):
    check_choices(config, "Config")


@pytest.mark.parametrize(
    "config, message",
    [
        (Config("medium"), r"Config\.size = 'medium': expected one of 'small', 'large'"),
        (Config(None), r"Config\.size = None: expected one of 'small', 'large'"),
        (Config(color="blue"), r"Config\.color = 'blue': expected one of 'red', None"),
    ],
)
def test_other_choices_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        check_choices(config, "Config")


def test_bounds():
    check_at_least(Config(), "Config", 1, "count")
    check_at_least(Config(count=None), "Config", 1, "count")
    for least, message in ((2, "must be at least 2"), (0, "must be 0 or more")):
        with pytest.raises(ValueError, match=rf"Config\.count = -1 {message}"):
            check_at_least(Config(count=-1), "Config", least, "count")
    with pytest.raises(ValueError, match="nan must be at least 1"):
        check_at_least(Config(count=float("nan")), "Config", 1, "count")
