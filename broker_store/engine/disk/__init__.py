"""The disk seam: the only folder of the engine that calls the operating system for files."""
