"""Summary of a run: per layer recall, gap, what training added to it, and the epochs that matter."""
