"""Writers of documents.

Each knows the blocks of `dpaudit.reports.document`, and nothing of audits.
"""
