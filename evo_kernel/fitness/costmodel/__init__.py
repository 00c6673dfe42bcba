"""The modeled time of a plan, and what it is computed from."""
