"""Frameworks that people put on top of the official client, each through what its own manual shows."""
