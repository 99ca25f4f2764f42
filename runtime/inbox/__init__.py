"""What the training thread and the backends tell a pipeline."""
