"""Predictions beside measurements: comparison, verdict, likely causes, inverse questions."""
