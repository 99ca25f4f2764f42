"""What journals say of the runs that they are of: which job each belongs to, its windows, and what there is of them."""
