"""Translates texts with a model of `objectives.translator`, and scores translations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.batches.packing import row_length
from xlme_jax.data.languages import spelled_as
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.beam_search import NONE, BeamSearch, Found, search
from xlme_jax.evaluation.encoding import Text
from xlme_jax.evaluation.random_translations import Sampling, sample
from xlme_jax.objectives.abilities import Decodes
from xlme_jax.objectives.cross_attention import cross_attention

Rows = Mapping[str, Any]


class Hypothesis(NamedTuple):
    """A translation.

    Attributes:
      tokens: tokens of the translation, without specials.
      score: log-probability over length^penalty (`length_penalty` of the search).
      is_cut: whether the translation ends at the length limit of its text (`Translator.limit`),
        not by `</s>`.
    """

    tokens: Text
    score: float
    is_cut: bool = False


class TranslationScore(NamedTuple):
    """How probable a model finds a given translation.

    Attributes:
      total: sum of the log-probabilities of its tokens, `</s>` included.
      tokens: number of tokens, `</s>` included.
    """

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """The mean log-probability of a token, beam search's score with penalty 1."""
        return self.total / self.tokens


class Translator:
    """Translates tokenized texts in batches of few shapes.

    Args:
      objective: an `objectives.translator.Translate`.
      config: how to search, or to draw.
      row_multiple: number of devices that share a batch.
      batch_tokens: source tokens of a batch.
      allowed: bool[V], tokens that translations may have; None for all.

    Attributes:
      max_length: maximum tokens of a text, with specials; None for no limit.

    Raises:
      ValueError: the objective does not translate.
    """

    def __init__(
        self,
        objective: Any,
        config: BeamSearch | Sampling,
        row_multiple: int = 1,
        batch_tokens: int = encoding.BATCH_TOKENS,
        allowed: np.ndarray | None = None,
    ):
        if not isinstance(objective, Decodes):
            raise ValueError(
                "this model does not translate: fine-tune it with gin_configs/models/translate.gin"
            )
        self._objective, self._config = objective, config
        self._allowed = allowed
        self._lay_out = row_multiple, batch_tokens
        encoder = objective.encoder.config
        self.max_length: int | None = encoder.max_length if encoder.absolute_positions else None
        self._translate = jax.jit(self._of_rows)
        self._score = jax.jit(self._scores_of_rows)
        self._attend = jax.jit(self._attention_of_rows)

    def limit(self, text: Text) -> int:
        """Returns the greatest number of tokens of a text's translations, `<s>` included.

        It is twice the length of the row that the text alone would have (`row_length`), and at most
        `max_length`.
        """
        limit = 2 * row_length(len(text))
        return limit if self.max_length is None else min(limit, self.max_length)

    def __call__(self, params: Any, texts: Sequence[Text], language: str) -> list[list[Hypothesis]]:
        """Returns the hypotheses that `each` yields, in the order of the texts."""
        hypotheses = dict(self.each(params, texts, language))
        return [hypotheses[index] for index in range(len(texts))]

    def each(
        self,
        params: Any,
        texts: Sequence[Text],
        language: str,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Translates into a language; translations of a text do not depend on the other texts.

        Args:
          params: the weights.
          texts: sources with `<s>` and `</s>`, at most `max_length` tokens.
          language: a language of the objective.
          numbers: number of each text, which selects its random numbers; None for its index.

        Yields:
          The index of each text, the longest text first, and its hypotheses. Those of beam search
          are at most `BeamSearch.beams`, the best first; those of sampling are in the order in
          which they were drawn.

        Raises:
          ValueError: the model does not know the language.
        """
        number = self._number(language)
        drawn = np.arange(len(texts)) if numbers is None else np.asarray(numbers)
        limits = np.array([self.limit(text) for text in texts])
        batches = [
            encoding.with_columns(batch, numbers=drawn, limits=limits)
            for batch in encoding.batches(texts, *self._lay_out)
        ]

        def run(params: Any, rows: Mapping[str, Any]) -> Found:
            return self._translate(params, rows, number)

        for indices, (tokens, scores) in encoding.run(run, params, batches):
            for index, *hypotheses in zip(indices.tolist(), tokens, scores):
                yield (
                    index,
                    [
                        _hypothesis(words[: limits[index]], float(score))
                        for words, score in zip(*hypotheses)
                        if score > NONE
                    ],
                )

    def score(
        self, params: Any, pairs: Sequence[tuple[Text, Text]], language: str
    ) -> Iterator[tuple[int, TranslationScore]]:
        """Scores given translations.

        Args:
          params: the weights.
          pairs: (source, translation into the language), with `<s>` and `</s>`, at most
            `max_length` tokens each.
          language: a language of the objective.

        Yields:
          The index of each pair, the longest pair first, and its score.

        Raises:
          ValueError: the model does not know the language.
        """
        for numbers, (totals, counts) in self._of_pairs(self._score, params, pairs, language):
            for index, total, count in zip(numbers.tolist(), totals.tolist(), counts.tolist()):
                yield index, TranslationScore(total, count)

    def attention(
        self, params: Any, pairs: Sequence[tuple[Text, Text]], language: str
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields how much each token of given translations attends to each source token.

        Args and errors are those of `score`.

        Yields:
          The index of each pair, the longest pair first, and float32[T - 1, S]: for each of the
          T - 1 tokens of the translation after `<s>`, weights of the S source tokens, which add up
          to 1 (`objectives.cross_attention`).
        """
        for numbers, weights in self._of_pairs(self._attend, params, pairs, language):
            for index, of_pair in zip(numbers.tolist(), weights):
                source, target = pairs[index]
                yield index, of_pair[: len(target) - 1, : len(source)]

    def _of_pairs(
        self,
        function: Callable[[Any, Rows, Any], Any],
        params: Any,
        pairs: Sequence[tuple[Text, Text]],
        language: str,
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields the indices of the pairs of each batch, and the results of a function on them.

        Args:
          function: (params, rows, number of the language) -> tree of arrays [R, ...]. Names of the
            rows' arrays begin with "0 " for the source and with "1 " for the translation.
          params: the weights.
          pairs: (source, translation).
          language: language of the translations.
        """
        number = self._number(language)
        batches = []
        for batch in encoding.batches([max(pair, key=len) for pair in pairs], *self._lay_out):
            chosen = [pairs[index] for index in batch.texts]
            sides = [encoding.fill_rows(side, *batch.rows["tokens"].shape) for side in zip(*chosen)]
            rows = {
                f"{n} {name}": array for n, side in enumerate(sides) for name, array in side.items()
            }
            batches.append(encoding.Batch(rows, batch.texts))
        return encoding.run(lambda params, rows: function(params, rows, number), params, batches)

    def _number(self, language: str) -> np.int32:
        """Returns a language's number in the model's table of languages, from 1.

        Raises:
          ValueError: the model does not translate into the language.
        """
        config = self._objective.config
        (code,) = spelled_as([language], config.targets)
        if code not in config.targets:
            targets = ", ".join(config.targets)
            raise ValueError(f"the model translates into {targets}, not {language!r}")
        return np.int32(config.languages.index(code) + 1)

    def _scores_of_rows(
        self, params: Any, rows: Mapping[str, jax.Array], number: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns log-probabilities, [R], and numbers of predicted tokens, int32[R], of rows."""
        source, target = _sides(rows)
        # In training, source and translation are segments 1 and 2 of a pair.
        target["segment_ids"] = 2 * target["segment_ids"]
        target["languages"] = jnp.full_like(target["tokens"], number)
        states = self._objective.encode(params, source)
        hidden = self._objective.decode(
            params, target, states, source_segment_ids=source["segment_ids"]
        )
        prediction, _, is_predicted = self._objective.predict(params, hidden, target)
        return -(prediction.loss * is_predicted).sum(axis=1), is_predicted.sum(axis=1)

    def _attention_of_rows(
        self, params: Any, rows: Mapping[str, jax.Array], number: jax.Array
    ) -> jax.Array:
        """Returns the cross-attention weights of rows, float32[R, T, S]."""
        source, target = _sides(rows)
        languages = jnp.full((len(source["tokens"]),), number)
        return cross_attention(self._objective, params, source, target, languages)

    def _of_rows(self, params: Any, rows: Mapping[str, jax.Array], number: jax.Array) -> Found:
        """Returns the translations of rows of sources into the language with a number."""
        count, width = rows["tokens"].shape
        languages = jnp.full((count,), number)
        decoder = self._objective.decoder(params, rows, languages)
        length = min(2 * width, self.max_length or 2 * width)
        cache = decoder.cache(self._config.hypotheses, length)
        first = jnp.full((count,), BOS_ID, jnp.int32)
        ends: dict[str, Any] = {
            "length": length,
            "limits": rows["limits"],
            "eos": EOS_ID,
            "pad": PAD_ID,
        }
        allowed = None if self._allowed is None else jnp.asarray(self._allowed)
        if isinstance(self._config, Sampling):
            numbers = rows["numbers"]
            return sample(self._config, decoder.step, cache, first, numbers, only=allowed, **ends)

        def select(caches: Any, beams: jax.Array) -> Any:
            return tuple(cache.select(beams) for cache in caches)

        return search(self._config, decoder.step, select, cache, first, allowed=allowed, **ends)


def _sides(rows: Rows) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns the rows of sources and those of translations, from `Translator._of_pairs`' rows."""
    names = ("tokens", "segment_ids", "positions")
    source, target = ({name: rows[f"{n} {name}"] for name in names} for n in (0, 1))
    return source, target


def _hypothesis(tokens: np.ndarray, score: float) -> Hypothesis:
    """Returns the translation between `<s>` and `</s>`.

    Without `</s>`, it has reached its limit, where `tokens` end.
    """
    ends = np.flatnonzero(tokens == EOS_ID)
    end = ends[0] if len(ends) else None
    return Hypothesis(tuple(tokens[1:end].tolist()), score, is_cut=end is None)
