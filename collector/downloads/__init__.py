"""Files that are made for who asks, by processes of their own that take no more than they may."""
