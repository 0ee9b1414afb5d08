"""Print made-up requests with their tasks, to try ``edgewise classify learn`` on."""

import itertools
import json

NAMES = ("Anna", "Ben", "Dan", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jan", "Kim", "Lena", "Max")
THINGS = ("pears", "roof", "trip", "invoice", "visit", "garden", "car", "stove", "boat", "lamp")

for name, thing in itertools.product(NAMES, THINGS):
    print(json.dumps({"prompt": f"Write to {name} about the {thing}", "task": "letters"}))
    print(json.dumps({"prompt": f"How much does {name} pay for the {thing}?", "task": "sums"}))
