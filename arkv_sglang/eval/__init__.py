"""Accuracy of policies, measured where the cache is used: on decode steps."""
