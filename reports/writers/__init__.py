"""Writers of documents: each knows the blocks of `dpaudit.reports.document`, and nothing of audits."""
