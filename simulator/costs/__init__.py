"""Pure time formulas and the constants they use."""
