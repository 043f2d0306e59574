"""Where the project's own dependencies are tested: known vulnerabilities, oldest versions."""
