"""Commands that train the systems of the tables' rows, each in a folder of its own."""

from xlme_jax.studies.papers.needs import translation


def _trained(name: str, *files: str, flags: str = "") -> str:
    """Returns the command that trains in runs/NAME.

    Args:
      name: of the run's folder: no other command has it.
      files: gin files below gin_configs.
      flags: overrides.
    """
    named = [f"--gin_file=gin_configs/{file}.gin" for file in files]
    folder = f"--gin.MODEL_DIR=\"'runs/{name}'\""
    return " ".join(filter(None, ("python -m xlme_jax.train", *named, folder, flags)))


def _file(name: str, flags: str = "") -> str:
    return _trained(name, f"runs/{name}", flags=flags)


XLME_BASE = _file("xlme_base")
XLME_LARGE, XLME_XL = _file("xlme_large"), _file("xlme_xl")
XLME_NO_TRTD = _trained("xlme_base_no_trtd", "runs/xlme_base", "ablations/no_trtd")
XLME_NO_TRTD_NO_BIAS = _trained(
    "xlme_base_no_trtd_no_relative_bias",
    "runs/xlme_base",
    "ablations/no_trtd",
    "ablations/no_relative_bias",
)
XLM_BASE = _file("xlm_base")
XLM_BASE_NO_TLM = _trained(
    "xlm_base_no_tlm", "runs/xlm_base", flags="--gin.XLM.translation_pairs=False"
)

XLME_BASE_500K = _file("xlme_base_500k")
XYLENT_BASE, XYLENT_LARGE, XYLENT_XL = map(_file, ("xylent_base", "xylent_large", "xylent_xl"))
XYLENT_MLM = _file("xylent_base_mlm")
# The file's own data are of CCMatrix, this one's of MultiCCAligned (its Table 2).
XYLENT_CCALIGNED = _trained(
    "xylent_base_ccaligned",
    "runs/xylent_base",
    flags="--gin.DATA_DIR=\"'data/xylent_500k_ccaligned'\"",
)
XYLENT_DRO = _trained("xylent_base_dro", "runs/xylent_base", "ablations/robust_sampling")


def _continued(name: str, run: str, flags: str = "") -> str:
    start = f"--gin.INIT_FROM=\"'runs/{run}'\" --gin.DATA_DIR=\"'data/xylent_pubmed'\""
    return _trained(name, f"runs/{run}", "ablations/continued", flags=f"{start} {flags}".strip())


XYLENT_CONTINUED = (
    # At the rate of its pre-training, which XY-LENT's own objective does not survive (Sec. 8).
    _continued(
        "xylent_base_mlm_continued", "xylent_base_mlm", "--gin.Optimizer.learning_rate=8e-4"
    ),
    _continued("xylent_base_mlm_continued_low", "xylent_base_mlm"),
    _continued("xylent_base_continued", "xylent_base"),
)

_FROM_XLMR = "--gin.INIT_FROM=\"'$XLMR'\""
_FROM_XLMR_LARGE = "--gin.INIT_FROM=\"'$XLMR_LARGE'\""
INFOXLM_BASE = _file("infoxlm_base", _FROM_XLMR)
INFOXLM_LARGE = _file("infoxlm_large", _FROM_XLMR_LARGE)
_ABLATIONS = {
    "tlm": "--gin.InfoXLM.translation_pairs=False",
    "xlco": "--gin.InfoXLM.contrast=None",
    "mixup": "--gin.contrast/Sides.mixup=\"'none'\"",
    "momentum": "--gin.XLCo.momentum=0.0",
    "universal": "--gin.XLCo.layer=12",
}


def _infoxlm15(*without: str) -> str:
    """Returns the command of InfoXLM15 without some of `_ABLATIONS`."""
    name = "_".join(("infoxlm15_base", *(f"no_{part}" for part in without)))
    flags = " ".join((_FROM_XLMR, *(_ABLATIONS[part] for part in without)))
    return _trained(name, "runs/infoxlm15_base", flags=flags)


# The contrast on layer 8, the universal one, or on layer 12; with TLM and without.
INFOXLM15_LAYERS = (
    _infoxlm15(),
    _infoxlm15("universal"),
    _infoxlm15("tlm"),
    _infoxlm15("tlm", "universal"),
)
INFOXLM15_ABLATIONS = (
    _infoxlm15(),
    _infoxlm15("xlco"),
    _infoxlm15("tlm"),
    _infoxlm15("tlm", "xlco"),
    _infoxlm15("tlm", "mixup"),
    _infoxlm15("tlm", "momentum"),
    _infoxlm15("universal"),
)

VECO_LARGE = _file("veco_large", _FROM_XLMR_LARGE)
VECO_SMALL = (
    _trained("xlm_small_no_pairs", "runs/xlm_small", flags="--gin.XLM.translation_pairs=False"),
    _trained("veco_small_no_pairs", "runs/veco_small", flags="--gin.VECO.translation_pairs=False"),
    _file("xlm_small"),
    _file("veco_small"),
)


def _start(which: str, layers: int) -> str:
    """Returns the command of a translator whose decoder is the first or last layers, or random."""
    flags = f"--gin.Translate.decoder_layers={layers}"
    if which == "random":
        name, start = f"runs/wmt14_en_de_random_{layers}", "--gin.INIT_FROM=None"
    else:
        name = f"${{RUN}}_wmt14_en_de_{which}_{layers}"
        start = f"--gin.Translate.decoder_from=\"'{which}'\" --gin.INIT_FROM=\"'$RUN'\""
    return translation("wmt14_en_de", name, f"{flags} {start}")


# Those of Table 3 are the last six.
TRANSLATORS = tuple(
    _start(which, layers) for which in ("random", "first", "last") for layers in (3, 6)
)
