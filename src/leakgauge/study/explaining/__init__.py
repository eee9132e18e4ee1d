"""How much of a captured update its plan explains."""
