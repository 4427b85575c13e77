"""Pure functions from facts to findings: no file, no process, no clock, no network."""
