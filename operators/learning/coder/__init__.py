"""A Triton coder that learns: examples from lineages, rewards from the judge, supervised training, then GRPO.

    examples.py   what a coder learns from: (task, parent, strategy) -> edit; filtered, deduplicated, split by family
    walks.py      examples that the offline rewriter makes, of tasks and of random references
    answers.py    from a completion to a kernel: a whole file, search/replace blocks, or numbered lines
    rewards.py    what a judged completion earns; each part can be switched off
    scratch/      a small transformer from nothing: vocabulary, model, sampling, checkpoints, SFT and GRPO loops
    hub.py        the same two stages for a Hugging Face model, through TRL and PEFT (extra `rl`)

The judge itself is handed in (`rewards.Marker`): operators do not know the fitness room.
"""
