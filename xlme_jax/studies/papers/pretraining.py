"""Commands that train the systems of the tables' rows, each in a separate folder (`runs.tsv`)."""

from collections.abc import Mapping
from pathlib import Path

from xlme_jax.studies.papers.needs import translation
from xlme_jax.studies.published.rows import records


def _trained(name: str, files: str, flags: str) -> str:
    """Returns the command that trains in runs/NAME.

    Args:
      name: name of the run.
      files: paths of gin files below gin_configs, without suffix, separated by spaces.
      flags: further flags; "" for none.
    """
    named = [f"--gin_file=gin_configs/{file}.gin" for file in files.split()]
    folder = f"--gin.MODEL_DIR=\"'runs/{name}'\""
    return " ".join(filter(None, ("python -m xlme_jax.train", *named, folder, flags)))


def _translator(position: str, layers: int) -> str:
    """Returns the command that trains a translator of WMT14 from English to German.

    Args:
      position: "first" or "last" for a decoder that starts from these layers of a pre-trained
        encoder; "random" for a translator without pre-trained weights.
      layers: number of layers of the decoder.
    """
    flags = f"--gin.Translate.decoder_layers={layers}"
    if position == "random":
        name = f"runs/wmt14_en_de_random_{layers}"
        start = "--gin.INIT_FROM=None"
    else:
        name = f"${{RUN}}_wmt14_en_de_{position}_{layers}"
        start = f"--gin.Translate.decoder_from=\"'{position}'\" --gin.INIT_FROM=\"'$RUN'\""
    return translation("wmt14_en_de", name, f"{flags} {start}")


def _translator_of_more_pairs() -> str:
    """Returns the command for the row "random start, more pairs" of VECO's Table 4.

    A translator is trained from random weights on all pairs of English and German that VECO is
    pre-trained on, and then goes on with those of WMT14 (Sec. 5.2).
    """
    first = _trained(
        "opus_en_de_random_6",
        "finetune/veco_wmt14_en_de",
        "--gin.DATA_DIR=\"'data/opus_en_de'\" --gin.INIT_FROM=None",
    )
    start = "--gin.INIT_FROM=\"'runs/opus_en_de_random_6'\""
    return f"{first} && {translation('wmt14_en_de', 'runs/wmt14_en_de_more_pairs_6', start)}"


RUNS: Mapping[str, tuple[str, ...]] = {
    row["run"]: (_trained(row["run"], row["files"], row["flags"]),)
    for row in records(Path(__file__).parent / "runs.tsv")
} | {
    # VECO's Table 4; the decoder of its Table 3 starts from the last six layers.
    "translators": (
        *(_translator(which, layers) for which in ("random", "first", "last") for layers in (3, 6)),
        _translator_of_more_pairs(),
    )
}
"""{run of the tables: its commands}."""
