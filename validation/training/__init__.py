"""Measured training steps, and how well they are predicted."""
