"""What must be there before a service starts: made once (``prepare``), and waited for by every container (``wait``)."""
