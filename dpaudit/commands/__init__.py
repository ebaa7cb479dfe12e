"""The commands of `dpaudit`, a module each. They import heavy packages when they are called."""
