"""What a refund costs: the whole product, measured beside the same commits as plain SQL.

`python -m bench --help`; how to read it: docs/bench.md.
"""
