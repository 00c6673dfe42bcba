"""Answers with numbers that are none: NaN, infinities, digits by the thousand, text.

row: 17
ends: rejected
says: malformed
"""

import os

NUMBERS = ("NaN", "Infinity", "1e999", "-1", "9" * 4000, '"1"', "true", "0.5", "[]")


def run(x):
    faults = ", ".join(
        f'{{"case": "m3-n7", "setting": {number}, "fault": {{"status": "wrong", "reason": ""}}}}' for number in NUMBERS
    )
    configs = ", ".join(f'"k{place}": {number}' for place, number in enumerate(NUMBERS))
    os.write(3, f'{{"records": [{faults}], "needs": [], "configs": {{{configs}}}}}'.encode())
    os._exit(0)
