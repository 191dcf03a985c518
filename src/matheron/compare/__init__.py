"""The paper's other samplers, moments in closed form, distances between laws, bounds, and a diagnosis of draws."""
