"""Where an agent in a container finds its programs and the model API."""

MOUNT = "/opt/agents"  # where containers see agents_dir; scripts/agents/pack writes it into the programs
PYTHONS = (f"{MOUNT}/python/bin/python", "python3")  # one of them carries requests where no socket can be opened
PORT = 18399  # of the model API, at 127.0.0.1 in each container; below the ports that clients get
URL = f"http://127.0.0.1:{PORT}"
