"""Benchmarks: peers side by side in one run, medians and spread, results as JSONL."""
