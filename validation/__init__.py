"""Real measurements: run them, fit constants to them, compare predictions with them."""
