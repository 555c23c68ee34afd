"""SeqIO tasks and mixtures: sources of text and their tokenization.

`import tasks` reads no text. It registers the sources of the table
`xlme_jax.preparation.sources.SOURCES` that environment variables configure:

- `cldr`, `cldr_bitext`: the embedded corpus, always, in the languages of `CLDR_LANGUAGES` (default
  "en,ru,zh");
- `cc100`: the files in `CC100_DIR`; tasks `cc100_<lang>`;
- `bitext`: the pair files in `BITEXT_DIR`; tasks `bitext_<lang>_<lang>`;
- `tfds`, `tfds_bitext`: the data sets listed in `TFDS_TASKS`
  ("wiki40b/th:1.3.0=th,para_crawl/ende:1.2.0=en-de");
- `table`, `table_pairs`: the tables in `TABLE_DIR` and `TABLE_PAIRS_DIR`, if names of files and
  columns tell the language and the text;
- any other source with a folder, such as `text`: the files in `<NAME>_DIR` (`TEXT_DIR`).

`XLME_VALIDATION` ("every:20", see `xlme_jax.data.text.held_out`) selects the split "validation" of
`cc100`, `bitext`, `text`, `table` and `table_pairs`; the text of this split is removed from all
their training text. Besides these sources, `import tasks` registers

- labelled sets ("xnli", "panx_translate_train", ...): the embedded ones, those with a folder in
  `EVAL_DIR`, and those of TFDS ("tfds_xnli"); see `tasks.labelled`;
- `tatoeba`, `bucc`, `wordalign`, if they have a folder in `EVAL_DIR`; see `tasks.analyses`.

The variable `XLME_VOCABULARY` names the vocabulary. The function `register` of each module
registers tasks without environment variables::

    import seqio
    import tasks

    tasks.cc100.register("/data/cc100", ["en", "sw"], vocabulary="vocabulary.model")
    dataset = seqio.get_mixture_or_task("cc100").get_dataset({"tokens": 512}, split="train")

Monolingual tasks have the feature "tokens" (a document), bitext tasks "source" and "target"; all
are int32 ids without special tokens. Labelled tasks have "tokens", with special tokens, and
"labels".
"""

from __future__ import annotations

import os

from tasks import analyses, bitext, cc100, cldr, labelled, labelled_tfds, registration, tfds
from xlme_jax.data.text.held_out import HeldOutText
from xlme_jax.data.text.reading import joint_listing
from xlme_jax.preparation import sources as text_sources
from xlme_jax.preparation.labelled_source import FOLDER_VARIABLE
from xlme_jax.preparation.prepare_config import PrepareConfig

__all__ = ["analyses", "bitext", "cc100", "cldr", "labelled", "labelled_tfds", "tfds"]

VALIDATION_VARIABLE = "XLME_VALIDATION"


@joint_listing()
def register_from_environment() -> list[str]:
    """Registers the sources and labelled sets that environment variables configure.

    Returns:
      Names of the mixtures, and of the tasks of labelled sets.

    Raises:
      ValueError: A variable names a folder or language that does not exist.
    """
    names, settings = text_sources.from_environment(os.environ)
    spec = os.environ.get(VALIDATION_VARIABLE) or ""
    config = PrepareConfig(".", tuple(names), validation=spec, **settings)
    held_out = HeldOutText(spec, corpora=text_sources.find_corpora(config)) if spec else None
    registered: list[str] = []
    for source in text_sources.chosen(config):
        if source.needs_seqio:
            registered += tfds.register_all(config.tfds)
        else:
            registered += registration.register(source.find(config, held_out))
    evaluation = os.environ.get(FOLDER_VARIABLE)
    if evaluation:
        registered += analyses.register_found(evaluation)
    registered += labelled.register_found(evaluation)
    registered += labelled_tfds.register_all()
    return registered


register_from_environment()
