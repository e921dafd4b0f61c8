"""What a broker knows and decides: topics, groups, offsets, clients, locks, parked pulls, delays. No socket,
no clock of its own."""
