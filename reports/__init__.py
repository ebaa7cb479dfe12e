"""An AuditResult for people and programs: HTML, Markdown, JUnit, SARIF, terminal, comparisons.

Nothing here computes or judges. Every figure and every verdict comes from the result (report.json
is the truth); these modules choose what comes first, in which words, and make hostile text
harmless.
"""
