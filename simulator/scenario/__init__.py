"""Scenario files: parse, validate, resolve."""
