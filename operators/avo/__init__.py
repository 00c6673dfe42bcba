"""An agent that is the whole operator: it reads, edits, evaluates and submits; the commit gate stays outside it.

AvoOperator      operator.py: attempts, memory and supervisor as one operator
Attempt          attempt.py: one conversation, from a brief to a commit or a limit; resumable after every turn
Conversation     conversation.py: what the model sees, bounded in bytes
Memory           memory.py: what earlier attempts tried, across restarts
Supervisor       supervisor.py: notices stalls and cycles, gives new directions
"""
