"""The live state: made of the frames of all streams, in bounded memory, and the types of its answers."""
