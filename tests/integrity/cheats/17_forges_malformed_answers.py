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
    answer = {"records": [{"case": nest, "setting": [], "plan": "x"}], "needs": [], "configs": []}
    os.write(3, json.dumps(answer).encode())
    os._exit(0)
