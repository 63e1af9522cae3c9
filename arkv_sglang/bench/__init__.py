"""Speed of policies side by side, at equal KV bytes."""
