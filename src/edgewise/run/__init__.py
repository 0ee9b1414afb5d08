"""Sessions: admission, the decode loop, streaming, cancellation."""
