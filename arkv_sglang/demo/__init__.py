"""What demo and tests run on: a small real model, a corpus of real documents, a local run."""
