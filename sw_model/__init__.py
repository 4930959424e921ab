"""System model: front end, workloads, policies, memory, engine, report."""
