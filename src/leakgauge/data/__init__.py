"""Where examples come from: photos shipped with scikit-image, folders, archives, and Hugging Face data."""

from leakgauge.data.arrays import InMemory as InMemory
from leakgauge.data.arrays import Parts as Parts
from leakgauge.data.extras import Dicom as Dicom
from leakgauge.data.extras import Hub as Hub
from leakgauge.data.extras import Parquet as Parquet
from leakgauge.data.pictures import Folder as Folder
from leakgauge.data.pictures import Samples as Samples
from leakgauge.data.source import Source as Source
from leakgauge.data.source import check as check
from leakgauge.data.source import client_batches as client_batches
from leakgauge.data.source import gallery as gallery
from leakgauge.data.source import open_source as open_source
from leakgauge.data.source import public as public
from leakgauge.data.source import spec as spec
from leakgauge.data.table import Table as Table
from leakgauge.data.table import Tokens as Tokens
