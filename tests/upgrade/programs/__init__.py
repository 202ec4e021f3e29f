"""Programs that run on either release."""
