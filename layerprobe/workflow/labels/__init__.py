"""Which labels look wrong? Enter by `labels.review_labels`.

The images and layers of a run that are compared, and what their neighbours say of the labels; the tables and the file.

Types and words: `LabelsRequest`; suspect, duplicates, divided.
"""
