"""Pictures: what is accepted, what comes of it, and the child processes in which that happens.

`render.render` is the pure function from bytes to renditions; `pool.DecoderPool` runs it where hostile input can do no
harm. Nothing here knows of S3, MongoDB or Kafka.
"""
