"""The vocabulary of the tiny data, for checkpoints of random weights that runs on it start from."""

from xlme_jax.data.prepared import PreparedDataset


class DrawnVocabulary:
    """What `hf_folders.write_checkpoint` reads of a vocabulary; it has no tokenizer."""

    def __init__(self, data):
        dataset = PreparedDataset.load(data)
        self.model, self.size = dataset.vocabulary_path.read_bytes(), dataset.vocabulary_size
        self.digest = dataset.vocabulary_digest
