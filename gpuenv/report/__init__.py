"""Renderings of a doctor report: table, JSON, JUnit, GitHub, HTML."""
