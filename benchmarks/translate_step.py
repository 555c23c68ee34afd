"""Compares translation on this machine with Hugging Face's Transformers in PyTorch.

    python benchmarks/translate_step.py

- train: a step of Translate in one direction against MarianMT's: as many layers, the same widths
  and vocabulary, tied embeddings, label smoothing .1, dropout .1, clipping and AdamW (PyTorch's
  fused one, in a bare loop, which is all that its Trainer does plus the Trainer's own work). Both
  read the same pairs. "full": all sentences have the greatest length, so that neither side has
  padding. "mixed": lengths differ as in text; ours packs several pairs into a row, the peer pads
  pairs to the longest of the batch, as DataCollatorForSeq2Seq does. A speed is target tokens a
  second, padding not counted.
- decode: beam search, 5 beams, 32 sentences of different lengths, until the greatest length (the
  weights are random; `</s>` is excluded, so that both do the same steps), against `generate` with
  its cache on the exported EncoderDecoderModel with the same weights. "equal" is the share of
  sentences with the same best translation. Where CTranslate2 is installed (pip install
  ctranslate2), its time for the same work is shown beside: a MarianMT of the same shape with random
  weights, in float32 and int8.

Measurements alternate: each round runs ours, then the peer in a process of its own.

On CPUs where /sys/kernel/mm/transparent_hugepage/enabled contains "[madvise]", set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 for both.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import machine
import numpy as np
from finetune_step import padded, timed

BOS, PAD, EOS = 0, 1, 2
BEAMS, SENTENCES = 5, 32
DROPOUT, SMOOTHING = 0.1, 0.1
MODEL = "model"  # The exported model, in the folder that both processes know.


class Shape(NamedTuple):
    """Sizes of a model and of its batches."""

    hidden: int
    layers: int  # Of the encoder, and of the decoder.
    vocabulary: int
    rows: int  # Of a training batch.
    length: int  # Tokens of each side of a row.
    longest: int  # Decoded tokens of a sentence.

    @property
    def heads(self) -> int:
        """Attention heads of 64."""
        return max(self.hidden // 64, 1)


SHAPES = {
    "tiny": Shape(32, 1, 200, 2, 16, 16),  # For tests.
    "192": Shape(192, 3, 8_000, 16, 64, 64),
    "512": Shape(512, 6, 32_000, 16, 64, 64),
}
Pairs = list[tuple[list[int], list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="192,512", help=f"Any of {', '.join(SHAPES)}.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="Train steps of each kind per round.")
    parser.add_argument("--kinds", default="full,mixed,decode", help="What is measured.")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--output", default="benchmarks/results/translate_step.json")
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(peer(options)))
        return
    results = machine.describe("jax", "jaxlib", "torch", "transformers") | {
        "shapes": {name: measure(name, options) for name in options.shapes.split(",")}
    }
    machine.write(options.output, results)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns seconds of both by round; prints a table."""
    shape, kinds = SHAPES[name], options.kinds.split(",")
    print(f"\nhidden {shape.hidden}, {shape.layers}+{shape.layers} layers, V {shape.vocabulary:,}")
    with tempfile.TemporaryDirectory() as folder:
        steps = {kind: train_step(shape, kind) for kind in kinds if kind != "decode"}
        if "decode" in kinds:
            steps["decode"] = decoding(shape, Path(folder))
        command = [sys.executable, __file__, f"--peer={name}", f"--folder={folder}"]
        command += [f"--steps={options.steps}", f"--kinds={options.kinds}"]
        seconds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            own = {kind: timed(step, repeats(kind, options)) for kind, step in steps.items()}
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            theirs = json.loads(output.splitlines()[-1])
            for kind in kinds:
                seconds[kind].append({"ours": own[kind], "peer": theirs[kind]})
        equal, anchors = None, theirs.get("anchors", {})
        if "decode" in kinds:
            pairs = zip(steps["decode"](), theirs["translations"])
            equal = sum(ours == other for ours, other in pairs) / SENTENCES
    print(f"{'':8}{'ours s':>9}{'peer s':>9}{'tokens/s':>10}{'peer':>9}{'speed over the peer':>21}")
    table: dict[str, dict[str, Any]] = {}
    for kind, rounds in seconds.items():
        ours_s, peer_s = (statistics.median(s[side] for s in rounds) for side in ("ours", "peer"))
        ratio = statistics.median(s["peer"] / s["ours"] for s in rounds)
        tokens = tokens_of(shape, kind)
        table[kind] = {"seconds": rounds, "target_tokens": tokens, "speed_over_peer": ratio}
        rates = f"{tokens / ours_s:10,.0f}{tokens / peer_s:9,.0f}"
        print(f"{kind:8}{ours_s:9.4f}{peer_s:9.4f}{rates}{ratio:20.2f}x", flush=True)
    if equal is not None:
        table["decode"]["equal"] = equal
        print(f"equal translations: {equal:.0%}")
        own = statistics.median(s["ours"] for s in seconds["decode"])
        for name, theirs in anchors.items():
            table["decode"][name] = theirs
            print(f"{name}: {theirs:.4f} s, ours has {theirs / own:.2f}x its speed")
    return {"shape": shape._asdict(), "table": table}


def repeats(kind: str, options: argparse.Namespace) -> int:
    """Returns how often a round measures: decoding takes many steps of the decoder."""
    return 1 if kind == "decode" else options.steps


# --- What both read. ---


def training_pairs(shape: Shape, kind: str) -> Pairs:
    """Returns as many pairs as `rows` rows of two sides of `length` tokens have room for."""
    from xlme_jax.data.batches import packing

    rng = np.random.default_rng(0)
    if kind == "full":
        return sentences(shape, np.full((shape.rows, 2), shape.length))
    lengths: list[np.ndarray] = []
    while len(packing.pack([both.max() for both in lengths], shape.length)) <= shape.rows:
        # A median of 20 tokens, and sides that differ by some 15%.
        one = rng.lognormal(np.log(20), 0.6)
        both = one * np.exp(rng.normal(0, 0.15, 2))
        lengths.append(np.clip(both, 4, shape.length).astype(int))
    lengths.pop()
    return sentences(shape, np.array(lengths))


def sentences(shape: Shape, lengths: np.ndarray) -> Pairs:
    """Returns pairs of random tokens, `<s>` and `</s>` included, of int[n, 2] lengths."""
    rng = np.random.default_rng(1)

    def sentence(length: int) -> list[int]:
        return [BOS, *rng.integers(5, shape.vocabulary - 1, length - 2).tolist(), EOS]

    return [(sentence(first), sentence(second)) for first, second in lengths]


def sources(shape: Shape) -> list[list[int]]:
    """Returns sentences to translate, whose rows are so long that `longest` tokens are allowed."""
    longest = shape.longest // 2
    lengths = np.random.default_rng(2).integers(longest // 2, longest + 1, SENTENCES)
    lengths[0] = longest
    return [pair[0] for pair in sentences(shape, np.stack([lengths, lengths], axis=1))]


def tokens_of(shape: Shape, kind: str) -> int:
    """Returns predicted tokens of the targets: all but the first of each."""
    if kind == "decode":
        return SENTENCES * (shape.longest - 1)
    return sum(len(target) - 1 for _, target in training_pairs(shape, kind))


# --- Ours. ---


def translator(shape: Shape) -> Any:
    """Returns the objective."""
    import jax
    import jax.numpy as jnp

    from xlme_jax.model.encoder import EncoderConfig
    from xlme_jax.objectives.translator import TranslateConfig
    from xlme_jax.objectives.veco import VecoConfig

    encoder = EncoderConfig(
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        ffn_size=4 * shape.hidden,
        max_length=shape.length,
        relative_bias="none",
    )
    config = TranslateConfig(
        VecoConfig(encoder),
        ("en", "fr"),
        ("en-fr",),
        label_smoothing=SMOOTHING,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    return config.build(shape.vocabulary, dtype)


def packed(shape: Shape, pairs: Pairs) -> dict[str, np.ndarray]:
    """Returns rows with the sources in the first half and the targets in the second."""
    from xlme_jax.data.batches.layouts import lay_out_in_halves
    from xlme_jax.data.batches.packing import pack

    planned = pack([max(map(len, pair)) for pair in pairs], shape.length)
    sides = [side for row in planned for number in row for side in pairs[number]]
    rows = np.repeat(np.arange(len(planned)), [2 * len(row) for row in planned])
    sizes = np.array([len(side) for side in sides])
    tokens = np.concatenate([np.array(side, np.int32) for side in sides])
    batch = lay_out_in_halves(tokens, sizes, rows, shape.rows, 2 * shape.length)
    second = np.arange(2 * shape.length) >= shape.length
    languages = np.where(batch["segment_ids"] > 0, 1 + second, 0).astype(np.int32)
    return {**batch, "languages": languages}


def train_step(shape: Shape, kind: str) -> Callable[[], Any]:
    """Returns a train step, which compiles at its first call."""
    from steps import TrainStep

    from xlme_jax.objectives.translator import STREAM

    return TrainStep(translator(shape), {STREAM: packed(shape, training_pairs(shape, kind))})


def decoding(shape: Shape, folder: Path) -> Callable[[], list[list[int]]]:
    """Returns a translation, which compiles at its first call; writes the weights for the peer."""
    import jax
    from flax.core import meta

    from xlme_jax.evaluation.beam_search import BeamSearch
    from xlme_jax.evaluation.encoding import row_length
    from xlme_jax.evaluation.translation import Translator
    from xlme_jax.huggingface import translators, writing

    objective = translator(shape)
    params = meta.unbox(objective.init(jax.random.key(0)))
    rng = np.random.default_rng(3)
    # Larger than a fresh model's, so that hypotheses have different scores.
    params = jax.tree.map(lambda x: x + 0.05 * rng.standard_normal(x.shape).astype("f4"), params)
    bias = params["head"]["bias"]
    params["head"]["bias"] = bias.at[np.array([PAD, EOS])].set(-1e9)
    config, tensors = translators.model(objective, params)
    writing.save({"config.json": json.dumps(config).encode()}, tensors, folder / MODEL)
    texts = [tuple(text) for text in sources(shape)]
    run = Translator(
        objective, BeamSearch(BEAMS), batch_tokens=SENTENCES * row_length(len(texts[0]))
    )

    def translate() -> list[list[int]]:
        return [list(best[0].tokens) for best in run(params, texts, "fr")]

    return translate


# --- The peer. ---


def peer(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the peer's median seconds by kind, and its translations."""
    shape, kinds = SHAPES[options.peer], options.kinds.split(",")
    found: dict[str, Any] = {}
    for kind in kinds:
        run = marian_step(shape, kind) if kind != "decode" else generation(shape, options.folder)
        found[kind] = timed(run, repeats(kind, options))
        if kind == "decode":
            found["translations"] = run()
            found["anchors"] = anchors(shape, options.folder)
    return found


def marian(shape: Shape) -> Any:
    """Returns a MarianMT with random weights."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.hidden,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=4 * shape.hidden,
        decoder_ffn_dim=4 * shape.hidden,
        max_position_embeddings=shape.length,
        activation_function="gelu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
    )
    return MarianMTModel(config)


def marian_step(shape: Shape, kind: str) -> Callable[[], None]:
    """Returns a train step of MarianMT."""
    import torch

    model = marian(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    pairs = training_pairs(shape, kind)
    source, given, labels = (
        padded(texts, value)
        for texts, value in (
            ([source for source, _ in pairs], PAD),
            ([target[:-1] for _, target in pairs], PAD),
            ([target[1:] for _, target in pairs], -100),
        )
    )
    inputs = {"input_ids": source, "attention_mask": (source != PAD).long()}
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(**inputs, decoder_input_ids=given, use_cache=False).logits
        loss_of(logits.flatten(0, 1), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def generation(shape: Shape, folder: str) -> Callable[[], list[list[int]]]:
    """Returns `generate` with our weights."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / MODEL).eval()
    source = padded(sources(shape), PAD)

    def translate() -> list[list[int]]:
        with torch.inference_mode():
            found = model.generate(
                source,
                attention_mask=(source != PAD).long(),
                decoder_start_token_id=model.config.language_token_ids["fr"],
                eos_token_id=EOS,
                pad_token_id=PAD,
                num_beams=BEAMS,
                max_length=shape.longest,
                use_cache=True,
            )
        return [row[1:] for row in found.tolist()]

    return translate


def anchors(shape: Shape, folder: str) -> dict[str, float]:
    """Returns CTranslate2's median seconds of three by type of its weights; empty without it."""
    try:
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader
    except ImportError:
        return {}
    words = [str(number) for number in range(shape.vocabulary)]
    texts = [[words[token] for token in text[1:]] for text in sources(shape)]
    found = {}
    for weights in ("float32", "int8"):
        model = marian(shape)
        # MarianMT is BART with these; its own loader takes the last id for padding.
        model.config.normalize_before = model.config.normalize_embedding = False
        spec = BartLoader().get_model_spec(model)
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.decoder_start_token = words[BOS]
        spec.config.eos_token, spec.config.unk_token = words[EOS], words[PAD]
        spec.validate()
        spec.optimize(quantization=weights)
        path = Path(folder) / f"ctranslate2_{weights}"
        path.mkdir(exist_ok=True)
        spec.save(str(path))
        translator = ctranslate2.Translator(str(path), compute_type=weights, intra_threads=2)
        steps = dict.fromkeys(("min_decoding_length", "max_decoding_length"), shape.longest - 1)
        search = functools.partial(
            translator.translate_batch, texts, beam_size=BEAMS, max_batch_size=0, **steps
        )
        found[f"CTranslate2 {weights}"] = timed(search, 3)
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
