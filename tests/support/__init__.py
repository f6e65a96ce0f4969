"""What tests and benchmarks share: task folders, task shapes, made-up run directories, simulated evaluations."""
