"""What several jobs get of one served loader, and what that costs them."""
