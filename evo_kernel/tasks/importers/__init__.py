"""From a benchmark's checkout that the user names to the texts of ordinary task files.

What these texts import (tasks/problems.py, calls.py, interpreted.py) must keep its name: a text decides its task's
identity.
"""
