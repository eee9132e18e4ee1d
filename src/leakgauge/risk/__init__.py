"""What can be said about risk without running an attack."""

from leakgauge.risk.averaging import expected_singletons, hidden_by_averaging

__all__ = ["expected_singletons", "hidden_by_averaging"]
