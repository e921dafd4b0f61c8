"""What the broker knows and decides of pop consumption (docs/spec/pop.md), without sockets."""
