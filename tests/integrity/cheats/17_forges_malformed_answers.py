"""Writes nonsense as the recorder's answer: lists for numbers, a deep nest, the wrong cases.

row: 17
ends: rejected
says: malformed
"""

import json
import os


def run(x):
    nest = []
    for _ in range(500):
        nest = [nest]
    with open("result.json", "w") as file:
        json.dump({"records": [{"case": nest, "setting": [], "plan": "x"}], "needs": [], "configs": []}, file)
    os._exit(0)
