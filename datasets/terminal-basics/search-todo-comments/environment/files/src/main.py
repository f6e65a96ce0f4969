import tools.text


def main():
    # TODO read the arguments
    print(tools.text.clean(" hi "))


# todo lower case does not count
main()  # TODO exit status
