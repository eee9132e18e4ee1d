"""From a verdict to a decision that a person can sign."""
