"""The graph, hosts, control, flow control, supervision, run folder and command line: what makes stages a pipeline."""

if __name__ != "headrace.pipeline":  # a checkout is on `sys.path`, and the user means a different `pipeline`
    raise ModuleNotFoundError("No module named 'pipeline'; Headrace's own is headrace.pipeline", name=__name__)
