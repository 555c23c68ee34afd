"""What a checkpoint holds, the digests it is checked by, resuming and warm starts."""
