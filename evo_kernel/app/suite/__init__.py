"""`suite`: budgeted searches for many tasks, side by side, with one report. evo_kernel/cli/suite.py is its command."""
