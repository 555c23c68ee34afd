"""Raw text for tests of preparation."""

from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
from xlme_jax.preparation.prepare_config import PrepareConfig


def write_raw(folder, files, texts, size):
    """Writes {path: content} and a vocabulary of texts, `v.model`; returns the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    vocabulary = train_vocabulary(texts, size, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, folder / "v.model")
    return folder


def config_of(raw, output, **settings):
    """Returns the configuration that prepares `mono` and `pairs` of a folder of `write_raw`."""
    return PrepareConfig(
        output=str(output),
        tasks=("cc100", "bitext"),
        vocabulary=str(raw / "v.model"),
        cc100_dir=str(raw / "mono"),
        bitext_dir=str(raw / "pairs"),
        workers=1,
        **settings,
    )
