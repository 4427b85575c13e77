"""The compatibility matrix: load, validate, resolve, explain, verify, update."""
