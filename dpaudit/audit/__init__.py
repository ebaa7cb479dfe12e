"""Run directories in, results out: audits, comparisons, inspections, and what of them may be published."""

from dpaudit.audit.run import Progress, Question, audit_run
