"""Run directories in, results out: audits, comparisons, inspections, and their public forms."""

from dpaudit.auditing.batches import Progress as Progress
from dpaudit.auditing.run import Question as Question
from dpaudit.auditing.run import audit_run as audit_run
