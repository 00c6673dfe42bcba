"""Are the agents any good? Problems with a ground truth, and what a policy and a coder make of them."""
