"""Measures what a federated-learning update reveals about the client's data."""
