"""What the demo and the tests run on: a small real model, a corpus of real documents, a local run."""
