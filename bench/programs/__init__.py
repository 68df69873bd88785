"""Programs that measurements start as processes of their own."""
