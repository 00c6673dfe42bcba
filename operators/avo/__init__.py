"""An agent that is the whole operator: it reads, edits, evaluates and submits; the commit gate stays outside it."""
