"""What is looked at in a received model, a module a place."""
