"""Learning to optimise: stored transitions, an environment that replays them, and policies trained on them.

tree         states and transitions that a judge once measured: a versioned file
evidence     what a state knows of its kernel, as JSON and back
collecting   which action of which state to judge next, when a tree is grown
replay       a Gymnasium environment over a tree
reward       what a step earns
evaluation   regret of a policy on a tree, with intervals
offpolicy    what a policy would have earned, from decisions of another
"""
