"""What each defence leaves to an attacker, beside what it costs."""
