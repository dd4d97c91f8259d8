"""Do the assumptions of an audit hold, and is it large enough? Each check returns numbers, and a warning if not."""
