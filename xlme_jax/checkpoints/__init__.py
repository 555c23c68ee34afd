"""Contents and digests of checkpoints, resuming and warm starts."""
