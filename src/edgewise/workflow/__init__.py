"""Workflows: the stages joined, each step reported and recorded as evidence."""
