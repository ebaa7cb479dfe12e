"""Names of files in a release folder, beside its attestation."""

from __future__ import annotations

from typing import Final

CARD, REGISTRY, REPORT = "README.md", "opendp_deployment.yaml", "report"
#: Drafts for the house's own files, of the public form and of what the publisher says.
DPIA, HIPAA, QUESTIONS = "annexes/dpia.md", "annexes/hipaa.md", "annexes/questions.md"
#: Of a release: its texts are in data/SPLIT.parquet and, the same, in jsonl/SPLIT.jsonl.
PARQUET, JSONL = "data", "jsonl"
#: Time stamps of the run's commitment and head.
STAMPS: Final = {"commitment": "commitment.tsr", "head": "head.tsr"}
#: Beside a file of texts: its mark.
SIDE_CAR = ".provenance.json"
