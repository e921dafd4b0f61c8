"""The port for RocketMQ 5 clients: gRPC, the service `apache.rocketmq.v2.MessagingService`
(docs/spec/grpc.md)."""
