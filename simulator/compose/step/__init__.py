"""A training step on a cluster: alike ranks folded, calls priced by the engine, one timeline."""
