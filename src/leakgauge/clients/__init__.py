"""How clients turn data into updates."""

from leakgauge.clients.client import SecureAggregation, client_update, cohort_view, raw_update, sent_update
from leakgauge.clients.local_training import FedAvg, FedSGD, LocalTraining
from leakgauge.clients.optimisers import SGD, Adam, Optimiser, adamw
from leakgauge.clients.protocol import GradientSum, Protocol, example_gradients, mean_gradient

__all__ = [
    "SGD",
    "Adam",
    "FedAvg",
    "FedSGD",
    "GradientSum",
    "LocalTraining",
    "Optimiser",
    "Protocol",
    "SecureAggregation",
    "adamw",
    "client_update",
    "cohort_view",
    "example_gradients",
    "mean_gradient",
    "raw_update",
    "sent_update",
]
