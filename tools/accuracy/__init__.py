"""The page docs/accuracy.md and its picture, written by ``make accuracy``."""
