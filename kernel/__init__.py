"""Plain Python that every room stands on: money, identity, canonical JSON, errors. No Django."""
