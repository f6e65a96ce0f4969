# pyright: strict
"""Trains on a folder of tasks. A server is up (scripts/start_skyrl_tx.sh) and SKYRL_TX_URL names it."""

import harbortrainer as ht

config = ht.Config(backend="skyrl-tx", model_name="models/quickstart", tasks_dir="datasets/quickstart", max_steps=2)
run = ht.train(config, after_step=lambda step, row: print(step, row["reward/mean"]))
print(run.path, run.metrics[-1]["reward/mean"])
