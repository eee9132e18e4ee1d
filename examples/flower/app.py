"""Flower's PyTorch quickstart on real photos; three lines capture what the clients send and what the server sees."""

import io

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import nn

from leakgauge.flower import CaptureMod, CaptureStrategy  # line 1 of leakgauge


class Net(nn.Module):
    """A LeNet: three convolutions with sigmoids and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(12, 12, 5, stride=2, padding=2)
        self.conv3 = nn.Conv2d(12, 12, 5, padding=2)
        self.fc = nn.Linear(12 * 8 * 8, 10)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.conv1, self.conv2, self.conv3):
            x = torch.sigmoid(layer(x))
        return self.fc(x.flatten(1))


def photos(file: str, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Photos of 32 px with their labels: of a Parquet file, or those that ship with scikit-image."""
    if file:
        import pyarrow.parquet

        rows = next(pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=first + count)).to_pylist()[first:]
        pictures = [Image.open(io.BytesIO(row["image"]["bytes"])) for row in rows]
        labels = [row["label"] for row in rows]
    else:
        from skimage import data

        scenes = (data.astronaut, data.coffee, data.chelsea, data.rocket, data.camera, data.coins, data.page, data.moon)
        labels = [i % len(scenes) for i in range(first, first + count)]
        pictures = [Image.fromarray(scenes[label]()) for label in labels]
    sized = [picture.convert("RGB").resize((32, 32), Image.Resampling.BICUBIC) for picture in pictures]
    pixels = [torch.frombuffer(bytearray(p.tobytes()), dtype=torch.uint8).view(32, 32, 3) for p in sized]
    return torch.stack(pixels).permute(0, 3, 1, 2).float() / 255, torch.tensor(labels)


app = ClientApp(mods=[CaptureMod(examples=True)])  # line 2 of leakgauge


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs in minibatches, as a quickstart does."""
    run, partition = context.run_config, int(context.node_config["partition-id"])
    count = int(run["examples"])
    inputs, labels = photos(str(run["photos"]), partition * count, count)
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    net.train()
    kind = torch.optim.Adam if run["optimizer"] == "adam" else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=float(run["lr"]))
    criterion = nn.CrossEntropyLoss()
    for _ in range(int(run["epochs"])):
        for x, y in zip(inputs.split(int(run["batch-size"])), labels.split(int(run["batch-size"])), strict=True):
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds of FedAvg."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy = CaptureStrategy(strategy, context.run_config["captures"])  # line 3 of leakgauge
    arrays, rounds = ArrayRecord(Net().state_dict()), int(context.run_config["rounds"])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
