"""The bytes of the KV cache: arena, slot table, request views and the allocator under them."""
