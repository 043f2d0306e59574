"""Logs of training runs: what a run did, next to what was predicted."""
