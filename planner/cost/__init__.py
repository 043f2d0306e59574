"""Pure functions from a plan and its inputs to seconds and bytes."""
