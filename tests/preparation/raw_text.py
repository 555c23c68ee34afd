"""Raw text for tests of preparation."""

from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary


def write_raw(folder, files, texts, size):
    """Writes {path: content} and a vocabulary of texts, `v.model`; returns the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    vocabulary = train_vocabulary(texts, size, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, folder / "v.model")
    return folder
