"""HTTP/2 of a server, without input and output: bytes go in, requests come out (RFC 9113, RFC 7541)."""
