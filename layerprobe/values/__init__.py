"""What rooms exchange: frozen values that open no file. Enter by the module of the value."""
