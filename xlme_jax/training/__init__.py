"""State, optimizer, mesh, checkpoints, metrics and the one train loop."""
