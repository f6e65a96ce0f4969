"""The domain `desk`: the service desk of a shop, generated here, in the form of tau2's domains and without tau2."""
