"""Where examples come from: photos shipped with scikit-image, folders, archives, and Hugging Face data."""

from leakgauge.data.arrays import InMemory, Parts
from leakgauge.data.extras import Dicom, Hub, Parquet
from leakgauge.data.pictures import Folder, Samples
from leakgauge.data.source import InWords, OfTokens, Source, check, client_batches, gallery, open_source, public, spec
from leakgauge.data.table import Table, Tokens

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
