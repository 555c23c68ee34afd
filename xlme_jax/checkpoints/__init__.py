"""Checkpoints: saving and restoring (`checkpoints`), reading (`saved`), digests, warm starts."""
