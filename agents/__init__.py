"""The door: agent keys, the HTTP API for orders and refunds, and its answers in problem details."""
