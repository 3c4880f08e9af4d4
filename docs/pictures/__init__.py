"""The pictures of README and docs: photographs of reports that are made of evidence kept here, by the code as it is now."""
