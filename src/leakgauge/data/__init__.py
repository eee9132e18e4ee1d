"""Where examples come from: photos shipped with scikit-image, folders, archives, and Hugging Face data."""

from leakgauge.data.arrays import InMemory
from leakgauge.data.dicom import Dicom
from leakgauge.data.parquet import Hub, Parquet
from leakgauge.data.parts import Parts
from leakgauge.data.pictures import Folder
from leakgauge.data.samples import Samples
from leakgauge.data.source import InWords, OfTokens, Source, check, client_batches, gallery, open_source, public, spec
from leakgauge.data.table import Table
from leakgauge.data.text import Tokens

__all__ = [
    "Dicom",
    "Folder",
    "Hub",
    "InMemory",
    "InWords",
    "OfTokens",
    "Parquet",
    "Parts",
    "Samples",
    "Source",
    "Table",
    "Tokens",
    "check",
    "client_batches",
    "gallery",
    "open_source",
    "public",
    "spec",
]
