"""A corpus of model answers, well formed and malformed, to the same source (`SOURCE`).

Well formed: (name, answer, what the source must become). Malformed: (name, answer, part of the reason).
"""
