"""Probes: self-contained files that run where torch is and print facts as JSON lines.

They may import the standard library and torch, and nothing of gpuenv.
"""
