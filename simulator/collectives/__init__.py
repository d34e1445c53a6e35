"""Collectives: what they must achieve, and the schedules that achieve it."""
