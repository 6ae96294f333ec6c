"""The engine under test: another interpreter, found or built, asked once what it is. This process never imports it."""
