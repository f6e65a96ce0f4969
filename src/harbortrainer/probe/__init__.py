"""Find out what a Tinker API does with what it is sent: by effect, on throw-away LoRA weights."""
