"""From an observation to a reconstruction."""
