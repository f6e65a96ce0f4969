"""The trainer, under the name that a user knows; it stands in harbortrainer/training/trainer.py."""

from harbortrainer.training.trainer import Terminus2Trainer as Terminus2Trainer
