"""Stripe, reached through its own SDK. The only room that imports `stripe`."""
