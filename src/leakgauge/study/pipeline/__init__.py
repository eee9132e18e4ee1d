"""An audit among other tools: forecasts, comparisons, lint, JUnit."""
