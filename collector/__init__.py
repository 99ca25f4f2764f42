"""The collector: takes the streams of many ranks, and keeps each as a journal."""
