"""A training step: what networks answer, the parts of a batch, and what is made of them."""
