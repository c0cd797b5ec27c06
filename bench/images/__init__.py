"""Whether any other decoder makes a network's samples of ordinary JPEG files as quickly, and as well."""
