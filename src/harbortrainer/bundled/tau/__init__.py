"""The venue of tau2-bench: customer-service conversations with tools and a simulated user, in this process."""
