"""The flags that say where raw text comes from, shared by the commands that read it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from absl import flags

from xlme_jax.data import cldr
from xlme_jax.preparation.config import CldrCorpus, PrepareConfig

flags.DEFINE_list(
    "tasks",
    ["cldr"],
    "cldr (embedded), cc100, bitext, tfds, labelled sets such as xnli, panx_translate_train or "
    "tfds_xnli (see tasks/labelled.py), or any SeqIO tasks and mixtures by name.",
)
flags.DEFINE_alias("task", "tasks")
flags.DEFINE_string("cc100_dir", None, "Folder of <lang>.txt.xz files (default: $CC100_DIR).")
flags.DEFINE_string("bitext_dir", None, "Folder of pair files (default: $BITEXT_DIR).")
flags.DEFINE_string(
    "eval_dir", None, "Folder with a folder for each labelled set (default: $EVAL_DIR)."
)
flags.DEFINE_list("languages", [], "Keep to these languages (default: all; cldr: en,ru,zh).")
flags.DEFINE_list("pairs", [], "Keep to these pairs, such as en-sw (default: all).")
flags.DEFINE_string("pivot", None, "Keep to pairs with this language, such as en.")
flags.DEFINE_list(
    "tfds", [], "TFDS data sets, such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de."
)
flags.DEFINE_list(
    "tsv_columns", None, "Columns with text in TSV pair files, from 0, such as 1,2 (default: 0,1)."
)
flags.DEFINE_string(
    "validation",
    "",
    "What of cc100 and bitext is held out of training: every:20, count:1000, ids:FILE (unit ids of "
    "multi-way folders) or folder:PATH; empty: nothing.",
)
flags.DEFINE_list("modules", [], "Python modules that register further SeqIO tasks.")
flags.DEFINE_list("cldr_kinds", list(cldr.KINDS), "Kinds of cldr phrases.")
flags.DEFINE_integer("cldr_documents", 2000, "Training documents per cldr language.", 0)
flags.DEFINE_integer("cldr_pairs", 10_000, "Training pairs per cldr language pair.", 0)
flags.DEFINE_integer("cldr_validation_pairs", 1000, "Held-out pairs per cldr language pair.", 0)

_FIELDS = tuple(field.name for field in dataclasses.fields(PrepareConfig))


def configuration(**fixed: Any) -> PrepareConfig:
    """Reads what to prepare: from --gin_file, flags given coming first; else from flags alone.

    Args:
      **fixed: Fields that do not come from a flag.

    Raises:
      ValueError: If a value makes no sense.
    """
    given = flags.FLAGS
    if not given.gin_file:
        return _from_flags(fixed)
    from xlme_jax.configuration import loading

    config = loading.load(given.gin_file, given.gin_bindings, "Prepare")
    named = {name: given[name].value for name in _FIELDS if name in given and given[name].present}
    return dataclasses.replace(config, **{**named, **fixed})


def _from_flags(fixed: dict[str, Any]) -> PrepareConfig:
    values = flags.FLAGS.flag_values_dict()
    corpus = None
    if "cldr" in values["tasks"]:
        corpus = CldrCorpus(
            cldr.CldrConfig(
                tuple(values["languages"]) or ("en", "ru", "zh"), kinds=tuple(values["cldr_kinds"])
            ),
            documents=values["cldr_documents"],
            pairs=values["cldr_pairs"],
            validation_pairs=values["cldr_validation_pairs"],
        )
    given = {name: values[name] for name in _FIELDS if name in values and name != "cldr"}
    given["cc100_dir"] = given["cc100_dir"] or os.environ.get("CC100_DIR")
    given["eval_dir"] = given["eval_dir"] or os.environ.get("EVAL_DIR")
    given["bitext_dir"] = given["bitext_dir"] or os.environ.get("BITEXT_DIR")
    return PrepareConfig(**{**given, "cldr": corpus, **fixed})
