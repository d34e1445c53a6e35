"""Fitting the cost profiles to published measurements: cases, features, parameters, the fit."""
