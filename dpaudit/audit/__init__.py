"""Run directories in, results out: audits, comparisons, inspections, and what of them may be published."""

from dpaudit.audit.run import Progress as Progress
from dpaudit.audit.run import Question as Question
from dpaudit.audit.run import audit_run as audit_run
