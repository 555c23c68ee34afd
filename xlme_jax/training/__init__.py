"""State, step, optimizer, mesh, metrics and the train loop."""
