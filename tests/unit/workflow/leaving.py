"""What a policy takes for all sensitive requests to leave, without asking."""

from __future__ import annotations

LEAVING = """
[[tasks]]
name = "chat"
cloud = "preferred"
destinations = ["far"]

[[destinations]]
name = "far"
url = "https://far.example/v1"
model = "m"
purpose = "help"
basis = "contract"

[[consent]]
ask = false

[[minimise]]
fields = ["messages"]
"""
