"""The live state: what the frames of all streams tell, in bounded memory, and the types in which it is told."""
