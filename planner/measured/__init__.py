"""Measured runs: read from a table, predicted, compared, and fitted to."""
