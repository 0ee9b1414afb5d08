"""A whole policy as a person writes it."""

WHOLE = """
name = "support"
revision = 3
feature = "support-assistant"
issued_at = "2026-01-01T00:00:00Z"
expires_at = "2999-01-01T00:00:00Z"

[[data_classes]]
name = "health"

[[data_classes]]
name = "ticket"
like = "personal"

[[tasks]]
name = "chat"

[[tasks]]
name = "draft"
data_classes = ["public", "ticket", "health"]
cloud = "when-needed"
destinations = ["acme"]
escalate = true
deadline_s = 20
evidence = ["smoke"]
delay_safe = true

[[destinations]]
name = "acme"
url = "https://api.acme.example/v1"
model = "acme-large"
purpose = "drafts that need a larger model"
region = "EU"
retention_days = 0
basis = "consent"
secret = "acme"
price = { currency = "EUR", input_per_million = 2, output_per_million = 8, daily_limit = 5 }

[[consent]]
data_class = "ticket"
destination = "acme"
standing_days = 30

[[minimise]]
destination = "acme"
fields = ["messages"]

[device]
thermal_max = "fair"
when_battery_low = false

[limits]
cloud_characters = 20000
temperature = 1.0
"""
