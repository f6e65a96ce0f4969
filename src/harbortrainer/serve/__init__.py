"""A trained policy behind the APIs of OpenAI and Anthropic."""
