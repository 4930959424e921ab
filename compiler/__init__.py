"""Software for the machine: layer compiler, program builder, vector programs, drivers."""
