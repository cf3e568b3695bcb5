"""What is measured with Meshwright: workloads, baselines, the runner, reports, the command line."""
