"""Decisions of people, bound to what they were shown."""
