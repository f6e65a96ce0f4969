"""Models beside the policy: judge, simulated users, a policy behind an endpoint."""
