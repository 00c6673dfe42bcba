"""`suite`: budgeted searches for many tasks, side by side, with one report. command.py is where to begin."""
