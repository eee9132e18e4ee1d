"""The table of defences: what each leaves to an attacker in fixed scenes, beside what the search can do without it."""
