"""Readers of documents and pairs (CC-100, Moses, OPUS zip, TSV, TMX) and held-out text."""

DEFAULT_MAX_DOCUMENT_CHARS = 100_000
