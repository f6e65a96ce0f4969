"""The training program: prepare, wire, train."""
