"""How long ``fusioncache warm`` takes with more processes and with fewer."""
