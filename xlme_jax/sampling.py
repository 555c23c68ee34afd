r"""Compares samplers of language pairs on a prepared data set, as a picture and a table.

    python -m xlme_jax.sampling --data=data/pairs --alpha=0.3 --output=densities.png

Draws the densities of XY-LENT's entropic sampler (`sampling='sinkhorn'`) and of the linear program
that it replaces side by side (the paper's Figures 2 and 6). Prints for both, and for plain
temperature sampling, how many pairs are never drawn and the effective number of pairs.
"""

from __future__ import annotations

import logging
from pathlib import Path

from absl import flags

from xlme_jax.configuration import command_line, values
from xlme_jax.data.languages import tag_or_code

_log = logging.getLogger("xlme_jax.sampling")
_DATA = flags.DEFINE_string("data", None, "Folder of a prepared data set with bitext.")
_ALPHA = flags.DEFINE_float("alpha", 0.7, "Exponent 1/T of the language shares.", 0.0)
_SMOOTHING = flags.DEFINE_float("smoothing", 0.0, "Smoothing of the entropic sampler.", 0.0)
_LANGUAGES = flags.DEFINE_list("languages", [], "Draw only these languages (default: all).")
_OUTPUT = flags.DEFINE_string("output", None, "PNG to write.")


def main() -> int:
    """Prints a table of the samplers and draws them to --output; returns the exit code."""
    from xlme_jax.data.batches import pair_sampling
    from xlme_jax.data.batches.streams import PairStream, stream_tasks
    from xlme_jax.data.prepared import PreparedDataset
    from xlme_jax.studies.reports import pair_densities

    if not _DATA.value or not _OUTPUT.value:
        raise values.ConfigError("--data=FOLDER and --output=FILE.png are needed.")
    stream = PairStream(
        "bitext",
        rows=1,
        length=8,
        alpha=_ALPHA.value,
        sampling="sinkhorn",
        smoothing=_SMOOTHING.value,
    )
    tasks = stream_tasks(PreparedDataset.load(_DATA.value), stream)
    languages, counts = pair_sampling.count_matrix((t.tags, t.examples) for t in tasks)
    samplers = pair_densities.samplers(languages, counts, stream.alpha, stream.smoothing)
    print(f"alpha={stream.alpha:g}, {pair_densities.table(counts, samplers)}")
    drawn = [tag_or_code(code) for code in _LANGUAGES.value]
    # The first sampler, by temperature, gives languages other shares than the two that are drawn.
    pair_densities.draw(Path(_OUTPUT.value), languages, counts, samplers[1:], drawn)
    _log.info("Picture: %s", _OUTPUT.value)
    return 0


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
