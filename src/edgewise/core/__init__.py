"""Frozen values that every layer shares. No I/O happens here."""
