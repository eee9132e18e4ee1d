"""From the trials of an audit to its findings, flags, gate and verdict."""
