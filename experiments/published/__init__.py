"""The cost model against what others have published: worked problems, kernels, collectives, training runs."""
