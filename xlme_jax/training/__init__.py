"""State, step, optimizer, mesh, metrics and the one train loop."""
