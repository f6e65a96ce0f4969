from inventory import Inventory

stock = Inventory()
stock.add("nails", 40)
assert stock.count("nails") == 40, "add counts from 0"
stock.take("nails", 15)
assert stock.count("nails") == 25
assert stock.count("screws") == 0, "never added: 0"
try:
    stock.take("nails", 100)
except ValueError:
    assert stock.count("nails") == 25, "a refused take changes nothing"
else:
    raise AssertionError("took more than there was")
stock.add("glue", 2)
assert stock.scarce(25) == ["glue"], "fewer than the limit"
print("ok")
