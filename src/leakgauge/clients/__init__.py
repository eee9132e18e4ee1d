"""How clients turn data into updates."""

from leakgauge.clients.client import SecureAggregation as SecureAggregation
from leakgauge.clients.client import client_update as client_update
from leakgauge.clients.client import cohort_view as cohort_view
from leakgauge.clients.client import raw_update as raw_update
from leakgauge.clients.client import sent_update as sent_update
from leakgauge.clients.local_training import FedAvg as FedAvg
from leakgauge.clients.local_training import FedSGD as FedSGD
from leakgauge.clients.local_training import LocalTraining as LocalTraining
from leakgauge.clients.optimisers import SGD as SGD
from leakgauge.clients.optimisers import Adam as Adam
from leakgauge.clients.optimisers import Optimiser as Optimiser
from leakgauge.clients.optimisers import adamw as adamw
from leakgauge.clients.protocol import GradientSum as GradientSum
from leakgauge.clients.protocol import Protocol as Protocol
from leakgauge.clients.protocol import example_gradients as example_gradients
from leakgauge.clients.protocol import mean_gradient as mean_gradient
