"""How the house is put together: settings, processes, schedule, checks, addresses."""
