import sys

sys.path.insert(0, "/app")
from inventory import Inventory


def refused(method, *arguments):
    try:
        method(*arguments)
    except ValueError:
        return True
    return False


a, b = Inventory(), Inventory()
a.add("x")
assert b.names() == [] and b.count("x") == 0 and a.count("x") == 1
given = {"nut": 3, "bolt": 5}
c = Inventory(given)
given["nut"] = 9
assert c.count("nut") == 3
c.add("nut", 2)
assert given["nut"] == 9 and c.count("nut") == 5
for count in (0, -1):
    assert refused(c.add, "nut", count) and refused(c.take, "nut", count) and c.count("nut") == 5
assert refused(c.take, "nothing") and c.names() == ["bolt", "nut"]
assert refused(c.take, "nut", 6) and c.count("nut") == 5
c.take("nut", 5)
assert c.count("nut") == 0 and c.names() == ["bolt"] and c.scarce(10) == ["bolt"]
d = Inventory({"bolt": 1, "zinc": 2, "alum": 1, "empty": 0})
c.merge(d)
assert c.count("bolt") == 6 and c.count("zinc") == 2 and d.count("bolt") == 1 and d.count("nut") == 0
assert c.names() == ["alum", "bolt", "zinc"]
assert c.scarce(2) == ["alum"] and c.scarce(3) == ["alum", "zinc"] and c.scarce(1) == []
c.add("zinc", 1)
assert d.count("zinc") == 2 and isinstance(c.names(), list) and isinstance(c.scarce(9), list)
print("all right", c.count("zinc") * 14)
