"""Federated training in simulation."""
