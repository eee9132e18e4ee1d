"""The client's check of a received model, before it trains on it."""
