"""Runtimes: the protocol they follow, the registry that finds them, the worker they run in."""
