"""Launch plans and the programs that are exported from them."""
