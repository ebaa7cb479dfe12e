"""Reports of an AuditResult: HTML, Markdown, JUnit, SARIF, terminal, comparison of runs.

Nothing here computes or judges. Every figure and every verdict comes from the result (report.json is the truth);
these modules choose what comes first, in which words, and make hostile text harmless.
"""
