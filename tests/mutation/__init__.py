"""Mutation testing of the pure rules: whether the tests notice when the code is changed."""
