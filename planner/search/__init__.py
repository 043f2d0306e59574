"""Everything that chooses: candidates, bounds, the ILP, and the plans people use today."""
