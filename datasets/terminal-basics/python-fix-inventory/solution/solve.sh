#!/bin/bash
set -e
cat > /app/inventory.py << 'END'
class Inventory:
    """Counts of goods by name. A good that was never added, or is used up, has the count 0."""

    def __init__(self, counts={}):
        self.counts = dict(counts)

    def add(self, name, count=1):
        if count < 1:
            raise ValueError("count")
        self.counts[name] = self.count(name) + count

    def take(self, name, count=1):
        if count < 1 or self.count(name) < count:
            raise ValueError("not enough")
        self.counts[name] -= count

    def count(self, name):
        return self.counts.get(name, 0)

    def names(self):
        return sorted(name for name, count in self.counts.items() if count > 0)

    def merge(self, other):
        for name in other.names():
            self.add(name, other.count(name))

    def scarce(self, limit):
        return [name for name in self.names() if self.count(name) < limit]
END
