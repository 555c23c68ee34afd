"""Readers of documents and translation pairs in the formats of corpora, and held-out text."""

DEFAULT_MAX_DOCUMENT_CHARS = 100_000
