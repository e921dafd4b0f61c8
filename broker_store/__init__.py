"""Headpond, a message broker that speaks Apache RocketMQ: store engine, protocol, broker, name server,
client."""

__version__ = "0.1.0"
