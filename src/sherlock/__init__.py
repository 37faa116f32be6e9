"""Sherlock: an OpenAI-compatible retrieval service for documents that stay with their owners."""

from importlib.metadata import version

__version__ = version("sherlock")
