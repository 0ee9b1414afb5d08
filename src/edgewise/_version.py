"""The version of the package, and of every file format field that records its producer."""

__version__ = "0.1.0"
