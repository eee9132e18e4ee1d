"""One attack put together from parts, against one update. Run it, or open its cells in a notebook."""

# %% The client: one photo, one gradient
import torch

import leakgauge as lg
from leakgauge.attacks.matching import Adam, Cosine, Matching, Pixels, TotalVariation

torch.manual_seed(0)
photos = lg.data.Samples(size=16)
task = lg.Task.of(lg.models.lenet(classes=photos.classes, size=16), lg.data.spec(photos))
batch = photos.read([2])
update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(seed=1))

# %% The attack: what is compared, what is taken for likely, what is moved, and how
attack = Matching(
    objective=Cosine(),
    prior=TotalVariation(weight=1e-3),
    canvas=Pixels(),
    minimiser=Adam(lr=0.1, steps=150),
)
found = lg.attack(task, update, using=attack, knows=lg.Knowledge(example_count=1, local_training=lg.clients.FedSGD()))

# %% Only now the truth: examples are assigned one to one, then scored
mates = lg.metrics.assign(found.inputs, batch.inputs)
print(found.status.value, found.labels.tolist(), found.cost)
print(f"PSNR {lg.metrics.PSNR()(mates.take(found.inputs), batch.inputs).item():.1f} dB")
