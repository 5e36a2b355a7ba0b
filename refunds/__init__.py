"""Orders and their balances, and the one action this product exists for: a refund."""
