"""A model as the package `mteb` evaluates it: `mteb.evaluate(MtebEncoder(model, 8), tasks)`.

Nothing of the project imports this module, and it imports `mteb` when its metadata are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from xlme_jax.evaluation import readouts
from xlme_jax.validation import extras

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlme_jax.evaluation.encoding import Pooling
    from xlme_jax.runs.models import Model


class MtebEncoder:
    """An encoder of `mteb`'s `EncoderProtocol`, whose similarity is the cosine.

    Attributes:
      model: the model, from `api.load`.
      layer: the layer that is pooled, as in `Model.encode`.
      pooling: how it is pooled, as in `Model.encode`.
      prompt: text that is put before every text, such as "query: ".
      name: "OWNER/NAME" in `mteb`'s results.
    """

    def __init__(
        self,
        model: Model,
        layer: int | None = None,
        pooling: Pooling | None = None,
        prompt: str = "",
        name: str = "xlme_jax/model",
    ):
        self.model = model
        self.layer = layer
        self.pooling = pooling
        self.prompt = prompt
        self.name = name

    def encode(self, inputs: Iterable[Mapping[str, Sequence[str]]], **of_task: Any) -> np.ndarray:
        """Returns the vectors of all texts, float32[N, D].

        Args:
          inputs: batches with the texts under "text", as `mteb` makes them.
          **of_task: names of task, split and language, and settings of batches, which do not
            change the vectors.
        """
        del of_task
        texts = [self.prompt + text for batch in inputs for text in batch["text"]]
        return self.model.encode(texts, layer=self.layer, pooling=self.pooling)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Returns the cosines of all vectors [N, D] with all others [M, D], float32[N, M]."""
        first, second = (np.atleast_2d(np.asarray(x)) for x in (embeddings1, embeddings2))
        return readouts.scores(first, second)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Returns the cosine of each vector [N, D] with that of the same row, float32[N]."""
        first, second = (
            np.asarray(readouts.normalised(jnp.asarray(x))) for x in (embeddings1, embeddings2)
        )
        return (first * second).sum(axis=-1)

    @property
    def mteb_model_meta(self) -> Any:
        """The model's description for `mteb`'s results.

        Raises:
          ValueError: mteb is not installed.
        """
        extras.check_installed("MtebEncoder", "mteb")
        from mteb.models import ModelMeta

        config = self.model.loaded.objective.encoder.config
        return ModelMeta.create_empty(
            {
                "name": self.name,
                "revision": self.model.loaded.folder.name,
                "embed_dim": config.hidden_size,
            }
        )
