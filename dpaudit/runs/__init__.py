"""The run directory: one versioned format, one writer, one reader. The only contract between generation and audit."""

from dpaudit.runs.assignment import Assigned, KeyedHash, data_digest
from dpaudit.runs.batches import (
    BatchHeader,
    BatchReader,
    BatchWriter,
    Sample,
    Step,
    aggregate_digest,
    without_stop,
)
from dpaudit.runs.clusters import (
    ClusterPlace,
    ClusterPlaces,
    decoded_centers,
    encoded_centers,
    texts_digest,
)
from dpaudit.runs.errors import InputError
from dpaudit.runs.manifest import (
    Batching,
    Claim,
    Clustering,
    Clusters,
    CountsNoise,
    Data,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    Sampling,
    Stopping,
)
from dpaudit.runs.reader import RunReader
from dpaudit.runs.writer import BatchExistsError, BatchStore, RunWriter
