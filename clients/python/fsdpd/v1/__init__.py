"""The API as messages: generated from proto/fsdpd/v1, whose comments say what each field means."""
