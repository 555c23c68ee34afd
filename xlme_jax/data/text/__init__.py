"""Raw files to documents and pairs: CC-100, Moses, OPUS zip, TSV, TMX; held-out text."""
