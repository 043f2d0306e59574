"""Launch folders on disk, changed as one transaction."""
