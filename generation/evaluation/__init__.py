"""Quality of synthetic texts: MAUVE against real ones, and accuracy of classifiers trained on them.

MAUVE against real ones, and accuracy of classifiers trained on them.

All of it reads private records without noise. Its figures are for readers who may see the records.
"""
