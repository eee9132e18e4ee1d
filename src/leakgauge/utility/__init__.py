"""What a defence costs: federated training in simulation."""

from leakgauge.utility.examples import Examples
from leakgauge.utility.federated import FederatedTraining, Round, Training, accuracy, aggregate
from leakgauge.utility.partition import dirichlet_partition

__all__ = ["Examples", "FederatedTraining", "Round", "Training", "accuracy", "aggregate", "dirichlet_partition"]
