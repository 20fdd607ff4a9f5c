"""The live server: recognizers for many rooms over the network, a durable record, and the page that shows them."""
