"""gRPC over HTTP/2, and the messages of `apache.rocketmq.v2`, without input and output."""
