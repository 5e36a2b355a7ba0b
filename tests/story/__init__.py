"""Stories of people, agents and money, told through the services."""
