"""Training strategies as lists of computations, collectives and waits."""
