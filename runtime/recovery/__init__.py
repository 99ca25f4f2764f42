"""Recovery: what a killed process left in its journal and its rings, brought together again."""
