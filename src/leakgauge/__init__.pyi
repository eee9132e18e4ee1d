"""Where each of the package's names comes from: for type checkers, and for first use (see `__init__.py`)."""

from . import attacks as attacks
from . import clients as clients
from . import data as data
from . import defenses as defenses
from . import metrics as metrics
from . import models as models
from . import servers as servers
from .compute import Budget as Budget
from .compute import Compute as Compute
from .draws import Draws as Draws
from .errors import InputError as InputError
from .face import attack as attack
from .face import audit as audit
from .face import frontier as frontier
from .face import inspect as inspect
from .observation import Attack as Attack
from .observation import Knowledge as Knowledge
from .observation import Observation as Observation
from .observation import Reconstruction as Reconstruction
from .observation import Status as Status
from .step.parts import Categories as Categories
from .step.parts import Classes as Classes
from .step.parts import Image as Image
from .step.parts import Labels as Labels
from .step.parts import Mask as Mask
from .step.parts import NextToken as NextToken
from .step.parts import Numbers as Numbers
from .step.parts import Series as Series
from .step.parts import Text as Text
from .step.parts import TimeToEvent as TimeToEvent
from .step.parts import Values as Values
from .step.parts import Volume as Volume
from .task import Batch as Batch
from .task import DataSpec as DataSpec
from .task import Mode as Mode
from .task import Task as Task
from .update import Update as Update
from .update import UpdateHeader as UpdateHeader
from .update import UpdateKind as UpdateKind

__version__: str
