"""A trained model for interactive use: embeddings, detection, filling, retrieval, alignment."""

import copy
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from xlme_jax.checkpoints.saved import UNTRAINED_HEAD, read_record
from xlme_jax.data.benchmarks.parallel_sets import AlignedCorpus
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.data.vocabulary import MASK_PIECE, Vocabulary
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.alignment import PairAligner
from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix
from xlme_jax.evaluation.encoding import Pooling, Text
from xlme_jax.objectives.abilities import Detects, Fills
from xlme_jax.runs import trained
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.validation.fields import check_one_of

_log = logging.getLogger(__name__)

# Most tokens of a text that is embedded, as in evaluations; an encoder may have a lower limit.
LENGTH = 512
# Few texts are filled up to a multiple of this many rows, so that few shapes are compiled.
_ROWS = 8
_READOUTS = (readouts.RAW, "csls")

Part = Literal["detect", "fill"]
# {ability's name: (the protocol of a system that has it, the part that it needs, such systems)}.
_NEEDS: dict[Part, tuple[type, str, str]] = {
    "detect": (Detects, "a discriminator", "XLM-E or XY-LENT"),
    "fill": (Fills, "a masked language model", "pre-training"),
}


class ScoredToken(NamedTuple):
    """A token, as the vocabulary spells it ("▁" begins a word), and a probability."""

    token: str
    probability: float


class Matches(NamedTuple):
    """The best candidates of each query, the best first.

    Attributes:
      indices: int64[Q, K], indices of candidates.
      scores: float32[Q, K].
    """

    indices: np.ndarray
    scores: np.ndarray


class Model:
    """A trained checkpoint; made by `load`.

    Programs are compiled at their first use with texts of a new length.

    Attributes:
      loaded: the checkpoint: its configuration, vocabulary, objective and weights.
    """

    def __init__(self, loaded: trained.LoadedRun):
        self.loaded = loaded
        self._subject = loaded.subject()
        self._row_multiple = math.lcm(_ROWS, self._subject.row_multiple)
        self._pooled = functools.cache(self._compile_pooled)
        self._all_pooled = functools.cache(self._compile_all_pooled)
        self._aligners = functools.cache(functools.partial(PairAligner, self._subject))
        self._compiled = functools.cache(_on_first_row)

    def __repr__(self) -> str:
        system = type(self.loaded.objective).__name__
        return f"Model({system}, {self.num_layers} layers, {str(self.loaded.folder)!r})"

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the run's data."""
        return self.loaded.vocabulary

    @property
    def num_layers(self) -> int:
        """Layers of the exported encoder."""
        return self._subject.num_layers

    @property
    def default_layer(self) -> int:
        """The layer that is read where none is named."""
        return self._subject.default_layer

    def reason_without(self, name: Part) -> str:
        """Returns why `detect` or `fill` is not available; empty if it is."""
        objective = self.loaded.objective
        ability, use, systems = _NEEDS[name]
        if isinstance(objective, ability):
            if name == "fill" and self._has_untrained_head:
                return (
                    f"fill needs a trained MLM head: {self.loaded.folder} was imported from a "
                    "folder without one, and its head is random; load the run that was exported, "
                    "or train the import with MLM"
                )
            return ""
        return (
            f"{name} needs {use}, which {type(objective).__name__}, the system of "
            f"{self.loaded.folder}, does not have; load a run of {systems}"
        )

    @functools.cached_property
    def _has_untrained_head(self) -> bool:
        """Whether an import made the MLM head at random."""
        return UNTRAINED_HEAD in read_record(self.loaded.folder).manifest

    def untrained(self) -> "Model":
        """Returns a copy of the model with the random weights of its run's seed, as a baseline.

        A run with INIT_FROM started from other weights.
        """
        copied = copy.copy(self)  # Shares the compiled programs, whose arguments are the weights.
        with states.sharding_rules(self.loaded.mesh):
            copied.loaded = dataclasses.replace(self.loaded, params=self.loaded.untrained())
        return copied

    def encode(
        self, texts: Sequence[str], *, layer: int | None = None, pooling: Pooling | None = None
    ) -> np.ndarray:
        """Embeds texts, as the evaluations of retrieval do.

        Args:
          texts: N texts, each cut to the tokens that the encoder reads, at most `LENGTH`; a warning
            says how many were cut.
          layer: hidden states to pool: 0 the embeddings, k the output of layer k, None those that
            `Contrast` pooled in training, or the middle layer of other systems.
          pooling: "mean" over all tokens, "mean_without_specials", or "first", the state of `<s>`;
            None for that of `Contrast`, or "mean".

        Returns:
          float32[N, D], in the order of the texts.

        Raises:
          ValueError: there is no text, or no such layer or pooling.
        """
        texts = _checked_texts(texts)
        chosen = encoding.choose_layer(layer, self, "layer")
        return self._embed(self._pooled(chosen, self._pooling(pooling)), texts)

    def encode_layers(self, texts: Sequence[str], *, pooling: Pooling | None = None) -> np.ndarray:
        """Embeds texts by every layer, in one pass.

        Args:
          texts: N texts, as in `encode`.
          pooling: as in `encode`.

        Returns:
          float32[K, N, D], K = `num_layers` + 1: the embeddings, and the output of each layer.

        Raises:
          ValueError: there is no text, or no such pooling.
        """
        texts = _checked_texts(texts)
        return self._embed(self._all_pooled(self._pooling(pooling)), texts).swapaxes(0, 1)

    def detect(self, text: str) -> list[ScoredToken]:
        """Returns the probability that each token of a text was replaced (RTD).

        Args:
          text: a text of at most as many tokens as the discriminator reads.

        Returns:
          The text's tokens, `<s>` and `</s>` included, each with its probability.

        Raises:
          ValueError: the system has no discriminator, or the text is too long or a list.
        """
        _check_text(text)
        objective = self.loaded.objective
        if not isinstance(objective, Detects):
            raise ValueError(self.reason_without("detect"))
        detect = self._compiled(objective.detect)
        tokens = (BOS_ID, *self.vocabulary.encode(text), EOS_ID)
        shares = jax.nn.sigmoid(self._run_on(detect, tokens))
        return [
            ScoredToken(self.vocabulary.id_to_piece(token), float(share))
            for token, share in zip(tokens, shares)
        ]

    def fill(self, text: str, k: int = 5) -> list[list[ScoredToken]]:
        """Predicts the tokens at each `<mask>` of a text; in XLM-E, with the generator.

        Each part between masks is tokenized on its own, so that the text after `<mask>` begins a
        word.

        Args:
          text: text with `<mask>` in place of one token, once or more often.
          k: number of predictions for each `<mask>`.

        Returns:
          For each `<mask>` its K = min(k, V) most likely tokens, with their probabilities.

        Raises:
          ValueError: the system is no masked language model, its MLM head was imported untrained,
            the text has no `<mask>`, or it is too long or a list.
        """
        _check_text(text)
        objective = self.loaded.objective
        reason = self.reason_without("fill")
        if reason or not isinstance(objective, Fills):
            raise ValueError(reason)
        fill = self._compiled(objective.fill)
        ids = self.vocabulary.encode_batch(text.split(MASK_PIECE))
        tokens = [BOS_ID, *ids[0]]
        for part in ids[1:]:
            tokens += [self.vocabulary.mask_id, *part]
        tokens.append(EOS_ID)
        masked = np.flatnonzero(np.array(tokens) == self.vocabulary.mask_id)
        if not len(masked):
            raise ValueError(f"{text!r} has no {MASK_PIECE}; write it in place of a token")
        # The text is the first row; the other rows are filled up and take the same positions.
        positions = np.tile(masked.astype(np.int32), (self._row_multiple, 1))
        logits = self._run_on(fill, tuple(tokens), positions)
        values, predicted = jax.lax.top_k(jax.nn.softmax(logits), min(k, logits.shape[-1]))
        return [
            [
                ScoredToken(self.vocabulary.id_to_piece(int(token)), float(value))
                for token, value in zip(*of_mask)
            ]
            for of_mask in zip(np.asarray(predicted), np.asarray(values))
        ]

    def retrieve(
        self,
        queries: Sequence[str],
        candidates: Sequence[str],
        *,
        k: int = 1,
        readout: str = "csls",
        layer: int | None = None,
        pooling: Pooling | None = None,
    ) -> Matches:
        """Finds the candidates that are most similar to each query, as the evaluations do.

        Args:
          queries: Q texts.
          candidates: C texts, such as sentences of another language.
          k: number of candidates to return for each query.
          readout: "csls", which compares each cosine with those of the neighbours on both sides, or
            "raw", the cosine (`evaluation.readouts`).
          layer: as in `encode`.
          pooling: as in `encode`.

        Returns:
          The K = min(k, C) best candidates of each query.

        Raises:
          ValueError: there is no text, or no such readout, layer or pooling.
        """
        if readout == "centred":
            raise ValueError(
                "readout = 'centred' needs the mean vector of each language, which two lists of "
                "texts do not tell: subtract it from `encode`'s vectors (docs/guide/python.md)"
            )
        check_one_of(readout, "readout", _READOUTS)
        queries, candidates = _checked_texts(queries), _checked_texts(candidates)
        vectors = self.encode([*queries, *candidates], layer=layer, pooling=pooling)
        scores = readouts.scores(vectors[: len(queries)], vectors[len(queries) :], readout)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return Matches(best, np.take_along_axis(scores, best, axis=1))

    def align(
        self,
        source: str | Sequence[str],
        target: str | Sequence[str],
        *,
        layer: int | None = None,
        temperature: float | None = None,
    ) -> AlignmentMatrix:
        """Links the words of two sentences by optimal transport, as `WordAlignment` does.

        Args:
          source: a sentence, split into words at white space; or its words.
          target: the other sentence.
          layer: as in `encode`.
          temperature: see `WordAlignment.temperature`.

        Returns:
          `predicted`, the linked (source word, target word), and `matrix`, the strength of each
          pair of words.

        Raises:
          ValueError: a side has no word, or a word has white space; the pair is too long, or there
            is no such layer.
        """
        words = [
            tuple(side.split()) if isinstance(side, str) else tuple(side)
            for side in (source, target)
        ]
        if not all(words):
            raise ValueError("a sentence without words cannot be aligned")
        for word in (*words[0], *words[1]):
            if len(word.split()) != 1:
                raise ValueError(f"{word!r} is no word; give a sentence as a string, or its words")
        none: tuple[frozenset[tuple[int, int]]] = (frozenset(),)
        corpus = AlignedCorpus("", ("", ""), (words[0],), (words[1],), none, none, 0)
        with states.sharding_rules(self.loaded.mesh):
            return self._aligners(layer, temperature)(self.loaded.params, corpus)[0]

    def _pooling(self, pooling: Pooling | None) -> Pooling:
        """Returns how states are pooled; ValueError if there is no such pooling."""
        chosen = pooling or self._subject.default_pooling
        check_one_of(chosen, "pooling", encoding.POOLINGS)
        return chosen

    def _compile_pooled(
        self, layer: int, pooling: Pooling
    ) -> Callable[[Any, Mapping[str, Any]], jax.Array]:
        """Returns the compiled function (params, rows) -> pooled states of a layer, [B, D]."""

        def pooled(params: Any, rows: Mapping[str, Any]) -> jax.Array:
            return encoding.pool(self._subject.encode(params, rows)[layer], rows, pooling)

        return jax.jit(pooled)

    def _compile_all_pooled(self, pooling: Pooling) -> Callable[..., jax.Array]:
        """Returns the compiled function (params, rows) -> all layers' pooled states, [B, K, D]."""
        return jax.jit(encoding.pool_all(self._subject.encode, pooling))

    def _embed(self, pooled: Callable[..., jax.Array], texts: Sequence[str]) -> np.ndarray:
        """Returns the results of a compiled function for texts, in the texts' order, [N, ...]."""
        length = min(LENGTH, self._subject.max_length or LENGTH)
        report = ReadReport()
        tokens = encoding.texts_of(self.vocabulary, texts, length, report)
        if cut := report.repaired["texts cut"]:
            _log.warning(
                "%d of %d texts have more than %d tokens, <s> and </s> included, and were cut to "
                "these; embed parts of long texts",
                cut,
                len(texts),
                length,
            )
        batches = encoding.batches(tokens, self._row_multiple)
        with states.sharding_rules(self.loaded.mesh):
            return encoding.embed(pooled, self.loaded.params, batches)

    def _run_on(
        self, function: Callable[..., jax.Array], tokens: Text, *arguments: Any
    ) -> np.ndarray:
        """Returns the result of a function of `_compiled` for one text.

        Args:
          function: a function of the weights, rows and `arguments`.
          tokens: ids of the text, which is the first row; other rows are filled up.
          *arguments: further arguments.

        Raises:
          ValueError: the text is longer than an encoder of the objective reads.
        """
        objective = self.loaded.objective
        encoders = (objective.encoder, *objective.diagnostics.encoders.values())
        limits = [
            encoder.config.max_length for encoder in encoders if encoder.config.absolute_positions
        ]
        if limits and len(tokens) > min(limits):
            raise ValueError(
                f"the text has {len(tokens)} tokens with <s> and </s>, and the model reads "
                f"{min(limits)}; shorten it"
            )
        rows = encoding.fill_rows([tokens], self._row_multiple, encoding.row_length(len(tokens)))
        with states.sharding_rules(self.loaded.mesh):
            return encoding.on_host(function(self.loaded.params, rows, *arguments))


def _on_first_row(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns the compiled function that returns the first row of the result of `function`."""
    return jax.jit(lambda *arguments: function(*arguments)[0])


def load(checkpoint: str, vocabulary: str | None, mesh: MeshConfig) -> Model:
    """Loads a checkpoint onto all devices.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      vocabulary: SentencePiece model; None uses the one of the run's data.
      mesh: how devices share weights and batches.

    Raises:
      ValueError: the checkpoint or vocabulary is missing, or they do not match.
    """
    devices = meshes.make_mesh(mesh)
    with states.sharding_rules(devices):
        return Model(trained.load(checkpoint, vocabulary, devices))


def _check_text(text: str) -> None:
    """Raises ValueError if `text` is no string."""
    if not isinstance(text, str):
        raise ValueError(f"text = {text!r} must be one text; call this for each of several")


def _checked_texts(texts: Sequence[str]) -> list[str]:
    """Returns the texts as a list; ValueError if `texts` is a string or empty."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts = {texts!r} must be a list of at least one text")
    return list(texts)
