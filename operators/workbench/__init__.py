"""The tools of an agent, defined once: a model's tool calls, MCP and the command line expose the same ones.

Workbench(workspace, tools…)    toolset.py: all tools of one attempt; `call(name, arguments)` never raises for an agent
Workspace                       workspace.py: a folder that no path leaves
protocols.py                    what is needed of judge, population and knowledge base
"""
