"""Models: layers, parameters, work and activations."""
