"""Measures that several rules share: of a job's ranks, their devices, processors, stacks and single steps; and evidence in one form."""
