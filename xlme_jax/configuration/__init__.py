"""The boundary to gin: which dataclasses it configures, files, values, the command line."""
