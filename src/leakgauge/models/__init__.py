"""Networks of the papers, by name."""

from leakgauge.models.networks import convnet as convnet
from leakgauge.models.networks import lenet as lenet
from leakgauge.models.networks import mlp as mlp
from leakgauge.models.networks import of_parts as of_parts
from leakgauge.models.networks import resnet18 as resnet18
from leakgauge.models.networks import resnet20 as resnet20
from leakgauge.models.networks import small_convnet as small_convnet
from leakgauge.models.networks import vgg as vgg
from leakgauge.models.networks import vgg16 as vgg16
