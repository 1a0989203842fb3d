"""The graph, hosts, control, flow control, supervision, run folder and command line: what makes stages a pipeline."""
