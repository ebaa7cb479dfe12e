"""Writers of `dpaudit.reports.document`. They know nothing of audits."""
