"""What keeps a reward honest: what changed, what is put back, what verification used."""
