"""The live server: recognition for many rooms over the network, a durable record, and a web page."""
