"""Plan the training of large models on clusters of unequal GPUs and networks."""

__version__ = "0.2.0"
