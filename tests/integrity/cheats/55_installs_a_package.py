"""Installs a package while it is imported.

row: 55
ends: build_error
says: not permitted
"""

import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "nothing"], check=True)


def run(x):
    return x
