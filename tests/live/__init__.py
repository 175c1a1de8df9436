"""One paid hour on Google's own servers, for a person with a project and a dollar: `make live`; README.md."""
