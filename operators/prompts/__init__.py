"""What prompts hold (docs/guides/agents.md); the texts are the .md files, golden files pin the whole."""
