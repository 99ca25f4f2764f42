"""Commands that work with a collector, an object store or running processes: `arm`, `collect`, `deliver`, `upload`."""
