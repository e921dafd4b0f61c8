#!/bin/sh
# Sends three messages to the topic Tour, which must be there, and finds them again, with curl and a token:
#   TOKEN=... docs/examples/rest/tour.sh [address of the dashboard]
# The token comes from: .venv/bin/python manage.py token create tour --role operator
set -eu
api=${1:-http://127.0.0.1:8080}/api/v1
ask() { # PATH, curl's options...
  path=$1; shift
  curl -sS --fail-with-body -H "Authorization: Bearer $TOKEN" "$@" "$api$path"
}

# A new token is good within a second of its making.
for _ in 1 2 3 4 5; do ask /auth/session > /dev/null 2>&1 && break; sleep 0.5; done
echo "I am     $(ask /auth/session)"

receipt=$(ask /topics/Tour/messages -d '{"body": "hello 0 from REST", "tag": "rest", "keys": ["rest-0"]}')
echo "sent     $receipt"
queue=$(echo "$receipt" | sed 's/.*"queue_id":\([0-9]*\).*/\1/')
offset=$(echo "$receipt" | sed 's/.*"queue_offset":"\([0-9]*\)".*/\1/')

echo "a list   $(ask /topics/Tour/messages -d '[{"body": "hello 1 from REST"}, {"body": "aGVsbG8gMiBmcm9tIFJFU1Q=", "body_encoding": "base64"}]')"
echo "pulled   $(ask "/topics/Tour/queues/$queue/messages?offset=$offset&limit=1&wait_ms=1000")"
echo "by key   $(ask '/messages?topic=Tour&key=rest-0&limit=1')"
