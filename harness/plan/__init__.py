"""Deployment + machine + engine -> exact argv, environment, devices, ports, memory and time budgets. Pure."""
