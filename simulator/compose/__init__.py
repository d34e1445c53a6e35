"""Composing: scenario, fabric, schedules and costs become the engine's input.

The one room that may use every other: layouts (`layout`), lowering (`lower`),
the choice of algorithm, protocol and channels (`choose`), bounds (`bound`), the run itself (`run`)
and sweeps of it (`sweep`).
"""
