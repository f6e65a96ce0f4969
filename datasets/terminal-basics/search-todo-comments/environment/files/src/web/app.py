PAGE = "nothing to do"
