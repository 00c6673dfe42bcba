"""`train`: trees of transitions, and what is trained on them. A command a file; group.py names them."""
