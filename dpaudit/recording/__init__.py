"""Records generators that are not ours while they run, as run directories that the audit reads."""

from dpaudit.recording.frozen import batching_key as batching_key
from dpaudit.recording.generators import RecordingOptions as RecordingOptions
from dpaudit.recording.generators import recording as recording
from dpaudit.recording.processor import Handed as Handed
from dpaudit.recording.processor import RecordingProcessor as RecordingProcessor
from dpaudit.recording.processor import rows_of_batch as rows_of_batch
from dpaudit.recording.recorder import HashedRecords as HashedRecords
from dpaudit.recording.recorder import RecordedBatch as RecordedBatch
from dpaudit.recording.recorder import Recorder as Recorder
from dpaudit.recording.recorder import hashed_records as hashed_records
