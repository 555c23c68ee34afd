"""SeqIO tasks and mixtures: where text comes from and how it becomes token ids.

`import tasks` reads no text. It registers what the environment names, and the embedded corpus
always:

- `cldr`, `cldr_bitext`: embedded, in the languages of `CLDR_LANGUAGES` (default "en,ru,zh");
- `cc100`: the files in `CC100_DIR`; tasks `cc100_<lang>`;
- `bitext`: the pair files in `BITEXT_DIR`; tasks `bitext_<lang>_<lang>`;
- the split "validation" of these two, and what training leaves out for it, by `XLME_VALIDATION`
  ("every:20", see `xlme_jax.data.text.held_out`);
- `tfds`, `tfds_bitext`: the data sets listed in `TFDS_TASKS`
  ("wiki40b/th:1.3.0=th,para_crawl/ende:1.2.0=en-de");
- labelled sets ("xnli", "panx_translate_train", ...): those of which `EVAL_DIR` has a folder, the
  embedded ones always, and those of TFDS ("tfds_xnli"); see `tasks.labelled`;
- `tatoeba`, `bucc`, `wordalign`: those of which `EVAL_DIR` has a folder; see `tasks.analyses`.

The vocabulary is that of `XLME_VOCABULARY`. Each module's `register` does the same from Python::

    import seqio
    import tasks

    tasks.cc100.register("/data/cc100", ["en", "sw"], vocabulary="vocabulary.model")
    dataset = seqio.get_mixture_or_task("cc100").get_dataset({"tokens": 512}, split="train")

Monolingual tasks have the feature "tokens" (a document), bitext tasks "source" and "target"; all
int32 ids without special tokens. Labelled tasks have "tokens", with special tokens, and "labels".
"""

from __future__ import annotations

import os

from tasks import analyses, bitext, cc100, cldr, labelled, labelled_tfds, tfds
from xlme_jax.data.cldr.corpus import CldrConfig
from xlme_jax.data.text.held_out import HeldOut, find_corpora
from xlme_jax.preparation.config import CldrCorpus

CLDR_LANGUAGES_VARIABLE = "CLDR_LANGUAGES"
VALIDATION_VARIABLE = "XLME_VALIDATION"


def register_from_environment() -> list[str]:
    """Registers what the environment variables name; returns mixtures and labelled tasks.

    Raises:
      ValueError: If a variable names a folder or language that does not exist.
    """
    languages = os.environ.get(CLDR_LANGUAGES_VARIABLE) or "en,ru,zh"
    registered = cldr.register(CldrCorpus(CldrConfig(tuple(languages.split(",")))))
    mono, pairs = map(os.environ.get, (cc100.FOLDER_VARIABLE, bitext.FOLDER_VARIABLE))
    spec = os.environ.get(VALIDATION_VARIABLE)
    held = HeldOut(spec, corpora=find_corpora(mono, pairs)) if spec else None
    if mono:
        registered += cc100.register(held_out=held)
    if pairs:
        registered += bitext.register(held_out=held)
    if lines := os.environ.get(tfds.TASKS_VARIABLE):
        registered += tfds.register_all(lines.split(","))
    evaluation = os.environ.get(labelled.FOLDER_VARIABLE)
    if evaluation:
        registered += analyses.register_found(evaluation)
    registered += labelled.register_found(evaluation)
    registered += labelled_tfds.register_all()
    return registered


register_from_environment()
