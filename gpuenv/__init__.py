"""Containerised GPU development environments: resolve, build, run and diagnose."""

__version__ = "0.1.0"
