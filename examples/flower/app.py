"""Flower's PyTorch quickstart on eight real photos, two clients of four; three lines capture what they send."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from leakgauge.data import Samples
from leakgauge.flower import CaptureMod, seen  # line 1 of leakgauge


class Net(nn.Module):
    """The quickstart's kind of network: convolutions and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def photos(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four of the photos that ship with scikit-image."""
    batch = Samples(size=32).read(range(4 * partition, 4 * partition + 4))
    return batch.inputs, batch.labels


app = ClientApp(mods=[CaptureMod("captures")])  # line 2 of leakgauge


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One epoch of SGD in minibatches of two."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = photos(int(context.node_config["partition-id"]))
    for x, y in zip(inputs.split(2), labels.split(2), strict=True):
        seen(x, y)  # line 3 of leakgauge
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, _: Context) -> None:
    """Two rounds of FedAvg."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=2)
