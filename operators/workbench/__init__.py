"""The tools of an agent, defined once: a model's tool calls, MCP and the command line expose the same ones."""
