"""Composing: scenario, fabric, schedules and costs become the engine's input.

The one room beside ``run.py`` that may use every other: layouts (`layout`), lowering (`lower`),
the choice of algorithm, protocol and channels (`choose`), bounds (`bound`).
"""
