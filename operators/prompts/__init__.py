"""What a prompt holds: a stable prefix (rules, task, hardware, API notes) and a volatile tail (parent, evidence, ...).

docs/guides/agents.md specifies it, golden files under tests/operators/golden pin it. The texts are the .md files here;
the code cuts every part to its budget (`parts`), writes evidence (`evidence`) and puts prompts together (`writer`).
"""
