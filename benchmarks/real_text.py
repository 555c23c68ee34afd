"""Plots retrieval and alignment of runs on real text by tokens seen.

    python benchmarks/real_text.py --run="XLM=runs/laptop_xlm" --run="InfoXLM=runs/laptop_infoxlm" \
        --readout=centred --layer=3 --alignment_layer=2 \
        --dictionary=benchmarks/results/dictionary.json --checkpoint=runs/laptop_xlm

Retrieval is read from the runs' `metrics.jsonl`, whose first line is the untrained encoder, and
alignment from the results of `evaluate --tasks=wordalign` in MODEL_DIR/evaluation. For a run that
started from another run, `LABEL=MODEL_DIR=OTHER_MODEL_DIR` adds the other run's tokens. With
`--checkpoint`, a second plot shows the cosines between the sentences of a paragraph and their
translations, before and after training.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#666666"
PARAGRAPH = {
    "en": (
        "The house stands on a hill above the river.",
        "My father built it when he was young.",
        "In the morning we drink tea in the garden.",
        "The children go to school at eight o'clock.",
        "Last winter there was a lot of snow.",
        "Nobody could leave the village for three days.",
        "We read old books and told stories by the fire.",
        "Now the sun is shining and the birds are singing.",
    ),
    "fr": (
        "La maison se trouve sur une colline au-dessus de la rivière.",
        "Mon père l'a construite quand il était jeune.",
        "Le matin, nous buvons du thé dans le jardin.",
        "Les enfants vont à l'école à huit heures.",
        "L'hiver dernier, il y a eu beaucoup de neige.",
        "Personne n'a pu quitter le village pendant trois jours.",
        "Nous lisions de vieux livres et racontions des histoires près du feu.",
        "Maintenant le soleil brille et les oiseaux chantent.",
    ),
    "ru": (
        "Дом стоит на холме над рекой.",
        "Мой отец построил его, когда был молодым.",
        "Утром мы пьём чай в саду.",
        "Дети идут в школу в восемь часов.",
        "Прошлой зимой было много снега.",
        "Никто не мог покинуть деревню три дня.",
        "Мы читали старые книги и рассказывали истории у огня.",
        "Теперь светит солнце и поют птицы.",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="append", default=[], help="LABEL=MODEL_DIR[=OTHER_MODEL_DIR]; repeatable."
    )
    parser.add_argument("--readout", default="centred")
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--alignment_layer", type=int)
    parser.add_argument("--pairs", default="en-fr,en-ru")
    parser.add_argument("--dictionary", help="Results of benchmarks/dictionary.py.")
    parser.add_argument("--checkpoint", help="MODEL_DIR for the similarity matrices.")
    parser.add_argument("--output", default="docs/real_text.png")
    parser.add_argument("--matrices", default="docs/real_text_matrix.png")
    options = parser.parse_args()
    if options.run:
        draw_curves(options)
    if options.checkpoint:
        draw_matrices(options)


def steps(folder: str) -> dict[int, tuple[float, dict[str, float]]]:
    """Returns {step: (millions of tokens seen, logged values)}, in order of steps."""
    tokens, last, found = 0.0, 0, {}
    for text in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        tokens += line.get("tokens_per_step", 0.0) * (line["step"] - last) / 1e6
        last = line["step"]
        found[last] = tokens, line
    return found


def retrieval(folder: str, metric: str) -> list[tuple[float, float]]:
    """Returns (millions of tokens seen, value) for each logged value of a metric."""
    found = steps(folder).values()
    return [(tokens, line[metric]) for tokens, line in found if line.get(metric) is not None]


def alignment(folder: str, layer: int) -> list[tuple[float, float]]:
    """Returns (millions of tokens seen, AER of en-fr at a layer); untrained encoders are at 0."""
    seen = steps(folder)
    found: dict[float, float] = {}
    for file in Path(folder).glob("evaluation/*/results.json"):
        evaluated = json.loads(file.read_text())
        for result in evaluated["results"]:
            if (result["task"], result["language"], result["metric"]) != (
                "wordalign",
                "en-fr",
                "aer",
            ):
                continue
            if result["layer"] == layer:
                untrained = result["system"] == "untrained"
                found[0.0 if untrained else seen[evaluated["step"]][0]] = result["value"]
    return sorted(found.items())


def draw_curves(options: argparse.Namespace) -> None:
    """Plots one panel per language pair, and one for alignment if it was evaluated."""
    runs = [text.split("=") for text in options.run]
    dictionary = json.loads(Path(options.dictionary).read_text()) if options.dictionary else {}
    panels = {
        f"{pair}: held-out retrieval, accuracy@1": lambda folder, pair=pair: retrieval(
            folder, f"probe/{options.readout}/layer_{options.layer}/{pair}"
        )
        for pair in options.pairs.split(",")
    }
    if options.alignment_layer is not None:
        panels["en-fr: alignment error rate (lower is better)"] = lambda folder: alignment(
            folder, options.alignment_layer
        )
    figure = Figure(figsize=(4.6 * len(panels), 3.6), dpi=110, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, points) in zip(axes, panels.items()):
        untrained = None
        for color, (label, folder, *start) in zip(COLORS, runs):
            curve = points(folder)
            untrained = curve[0][1] if curve and untrained is None else untrained
            before = 0.0
            if start:
                before = max(tokens for tokens, _ in steps(start[0]).values())
                # The run's own first value is that of an untrained encoder.
                curve = points(start[0])[-1:] + [(before + x, y) for x, y in curve if x > 0]
            if curve:
                axis.plot(*zip(*curve), "-", color=color, label=label)
        if untrained is not None:
            axis.axhline(untrained, color=GREY, linestyle="--", linewidth=1, label="untrained")
        pair = title.split(":")[0]
        key = "held out" if "retrieval" in title else "AER"
        if (best := _dictionary_figure(dictionary, pair, key)) is not None:
            axis.axhline(best, color=GREY, linestyle=":", linewidth=1, label="dictionary")
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("millions of tokens seen")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(0, None)
    # One legend is enough, as all panels have the same lines.
    axes[-1].legend(fontsize=8, frameon=False, loc="lower left")
    figure.savefig(options.output)
    print(f"-> {options.output}")


def _dictionary_figure(result: dict[str, Any], pair: str, key: str) -> float | None:
    found = result.get("pairs", {}).get(pair, {}).get(key, {})
    return found.get("dictionary" if key == "held out" else pair)


def draw_matrices(options: argparse.Namespace) -> None:
    """Plots cosines of sentences and their translations, before and after training."""
    import jax

    from xlme_jax.evaluation import encoding
    from xlme_jax.runs import trained
    from xlme_jax.training import mesh as meshes
    from xlme_jax.training import sharded_state as states

    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        loaded = trained.load(options.checkpoint, None, mesh)
        pooled = jax.jit(encoding.pool_all(loaded.objective.encode, "mean"))
        sides = {}
        for name, params in (("untrained", loaded.untrained()), ("trained", loaded.params)):
            for language, sentences in PARAGRAPH.items():
                texts = encoding.texts_of(loaded.vocabulary, sentences, 128)
                found = encoding.embed(pooled, params, encoding.batches(texts))[:, options.layer]
                found = found - found.mean(axis=0)
                sides[name, language] = found / np.linalg.norm(found, axis=1, keepdims=True)
    figure = Figure(figsize=(8, 7.4), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2)
    for row, language in enumerate(("fr", "ru")):
        for column, name in enumerate(("untrained", "trained")):
            cosines = sides[name, "en"] @ sides[name, language].T
            found = np.mean(cosines.argmax(axis=1) == np.arange(len(cosines)))
            axis = axes[row][column]
            image = axis.imshow(cosines, vmin=0, vmax=0.8, cmap="Blues")
            axis.set_title(f"en-{language}, {name}: {found:.0%} found", fontsize=10)
            axis.set_xlabel(f"sentence in {language}")
            axis.set_ylabel("sentence in en")
    figure.colorbar(image, ax=axes, shrink=0.6, label="cosine, centred")
    figure.savefig(options.matrices)
    print(f"-> {options.matrices}")


if __name__ == "__main__":
    main()
