"""What `make protos` makes of the .proto files of Apache RocketMQ 5 clients (Apache-2.0)."""
