"""What `harbortrainer doctor` does: looks at a server, and at Docker."""
