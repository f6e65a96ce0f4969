"""A past run's advantages and datums, rebuilt from its files under its own settings or others. No server, no Docker."""
