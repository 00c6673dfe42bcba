"""Agents that are not ours: the workbench in a folder, for any program that can run commands.

ExternalOperator   operator.py: prepares a folder, runs a command in it with limits, takes what it submits
Attempt            attempt.py: a workbench whose every call is durable; the MCP server stands on it too
folder.py          what lies in the folder: the brief, the task, the lineage, commands
request_server.py client.py  the way to the workbench: one bounded message each way over a socket in the folder
"""
