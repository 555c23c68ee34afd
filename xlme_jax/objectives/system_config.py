"""Base classes of the configurations of systems, which gin files and Python build.

A system is configured by a frozen dataclass that derives from `SystemConfig`. The dataclass is
registered by its name in gin files: in `configuration.registry.SYSTEMS`, or with
`configuration.registry.add` if it is part of another package.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import jax.numpy as jnp

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import Objective


class Paper(NamedTuple):
    """The publication of a system, for model cards."""

    authors: str
    title: str
    year: int


class SystemConfig:
    """Configuration of a system. Subclasses are frozen dataclasses, and define at least `build`.

    Attributes:
      paper: the publication of the system; None if there is none.
    """

    paper: ClassVar[Paper | None] = None

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> Objective:
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define build(vocab_size, dtype).")

    def with_dropout(self, rate: float) -> Self:
        """Returns the configuration with dropout `rate` in the exported encoder, for fine-tuning.

        Unless a subclass overrides this method, all encoders among the fields get this rate.
        """
        encoders: dict[str, Any] = {
            name: dataclasses.replace(value, dropout=rate, attention_dropout=rate)
            for name, value in vars(self).items()
            if isinstance(value, EncoderConfig)
        }
        return dataclasses.replace(self, **encoders)  # type: ignore[type-var]

    def held_out(self) -> "SystemConfig | None":
        """Returns the configuration for held-out text, without dropout.

        It is None if the system has no loss on held-out text.
        """
        return self.with_dropout(0.0)

    def sources(self) -> dict[str, str]:
        """Returns {field: run whose weights a new run carries along} (`objectives.base.Carry`)."""
        return {}

    @property
    def pretraining(self) -> "SystemConfig":
        """The configuration that the encoder was pre-trained with: this one, unless it is tuned."""
        return self


class TunedConfig(SystemConfig):
    """Configuration of a system that goes on with the encoder of another system.

    Attributes:
      pretrained: the configuration that the encoder was pre-trained with. If a gin file does not
        bind it, it is read from the checkpoint that INIT_FROM names.
    """

    pretrained: SystemConfig

    @property
    def pretraining(self) -> SystemConfig:
        """The configuration that the encoder was pre-trained with."""
        return self.pretrained


@runtime_checkable
class OneEncoderConfig(Protocol):
    """A configuration whose system has one encoder, which also predicts tokens."""

    @property
    def encoder(self) -> EncoderConfig:
        """The shape of the encoder."""
