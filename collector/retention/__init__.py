"""What a collector keeps when its disk is not enough, and what it gives up."""
