"""The measured path: timing, tuning and filling contexts."""
