"""Learning to optimise: stored transitions, walks that replay them, and policies trained on them.

Import from the modules; only what trains or scores a network needs torch.

    tree             states and transitions that a judge once measured: a versioned file
    evidence         what a state knows of its kernel, as JSON and back
    families         which task is of which family, and which are held out
    collecting       which action of which state is judged next, when a tree is grown
    assembling       from what collecting wrote to a tree
    decontamination  whether a tree holds code of a benchmark
    replay           walking over a tree
    evaluation       regret of a policy on a tree, with intervals

docs/guides/learning.md tells the whole of it.
"""
