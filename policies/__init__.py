"""Deterministic decisions: pure rules over facts from our own tables, recorded whole."""
