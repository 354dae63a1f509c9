"""At which similarity are two images accepted as of one class, and how often is that right on unseen classes?

The pairs of a stored layer or of given features, thresholds set on validation or selection classes and measured on
test, their table.

Types and words: false and true accept rates, genuine, impostor.
"""
