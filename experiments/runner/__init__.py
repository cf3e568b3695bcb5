"""The experiment runner: suites of workloads, meshes and strategies, a row for each run, kept as they come."""
