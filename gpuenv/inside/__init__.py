"""Files that run inside a container, in its own Python: sent as they are, imported by nothing."""
