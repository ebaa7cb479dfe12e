"""Quality of synthetic texts: MAUVE against real ones, and accuracy of classifiers trained on them.

All of it looks at private records without noise. Its figures are for whoever may see the records.
"""
