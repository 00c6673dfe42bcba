"""Asks a server for the answer.

row: 55
ends: build_error
says: not permitted
"""

import urllib.request


def run(x):
    return urllib.request.urlopen("http://192.0.2.1/answer", timeout=2).read()
