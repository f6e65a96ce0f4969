def show(items):
    for item in items:  # TODO pages
        yield item
